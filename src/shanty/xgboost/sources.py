"""Parses what XGBoost calls a URI: the files of a matrix, and how they are to be read.

    train.libsvm   data.txt?format=libsvm&indexing_mode=1   part-*.csv?label_column=0   folder/
    a.parquet;b.parquet?label=y   train.npz   data.txt?format=libsvm#cache

DMLC's readers, which XGBoost has used since 2014, accept options after `?`, several files between
`;`, all files of a folder, and a name for cache files after `#`. Parquet, npz, globs (`*` and `[`;
a `?` begins the options) and lists of all these are new.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from glob import glob, has_magic
from pathlib import Path
from urllib.parse import unquote

from shanty.xgboost.errors import DataError

_SUFFIXES = {
    **dict.fromkeys((".libsvm", ".svm", ".svmlight"), "libsvm"),
    **dict.fromkeys((".csv", ".tsv"), "csv"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    ".npz": "npz",
}
_OPTIONS = {  # of each format; `format` may always be given
    "libsvm": {"indexing_mode"},
    "csv": {"label_column", "weight_column", "delimiter"},
    "parquet": {"label", "weight", "qid"},
    "npz": {"label", "weight", "qid"},
}
SIDE_FILES = (".weight", ".group", ".base_margin")


@dataclass(frozen=True)
class Source:
    """Files that are read end to end, as rows of one matrix."""

    files: tuple[str, ...]  # as the user named them, in order
    format: str  # libsvm, csv, parquet or npz; "buffer": XGBoost's own binary form
    options: dict[str, str] = field(default_factory=dict)
    cache: str = ""  # the part after `#`

    def __str__(self) -> str:
        more = f" and {len(self.files) - 1} more" if len(self.files) > 1 else ""
        return f"{self.files[0]}{more}"

    def number(self, option: str, default: int) -> int:
        """An option that is an integer."""
        text = self.options.get(option, str(default))
        try:
            return int(text)
        except ValueError:
            raise DataError(f"{option}={text}: a number is needed here.") from None


def is_source(data: object) -> bool:
    """Returns whether `data` names files: a path, a URI, a list of them, or a Source."""
    if isinstance(data, (list, tuple)):
        return bool(data) and all(isinstance(each, (str, os.PathLike)) for each in data)
    return isinstance(data, (str, os.PathLike, Source))


def parse(data: object, default: str = "") -> Source:
    """Parses the name of a source; DataError for a wrong one, OSError for a folder.

    default: the format if neither the name nor the first bytes show it.
    """
    if isinstance(data, Source):
        return data
    words = data if isinstance(data, (list, tuple)) else [data]
    parts = [_part(str(word), default) for word in words]
    files = tuple(file for part in parts for file in part.files)
    first = parts[0]
    for part in parts:
        if (part.format, part.options) != (first.format, first.options):
            raise DataError(
                f"{first} and {part} would be read differently: as {_spell(first)} and as "
                f"{_spell(part)}. All files of a matrix must have the same format and options."
            )
    if any(part.cache for part in parts[1:]):
        raise DataError("Name the cache once, in the first item of the list.")
    return Source(files, first.format, first.options, first.cache)


def parse_old(uri: str) -> Source | str:
    """Parses a URI for which LibSVM is the default format, as it was for years.

    A URI that cannot be parsed is returned unchanged: loading it raises the error on all ranks.
    """
    try:
        return parse(uri, "libsvm")
    except (DataError, OSError):
        return uri


def side_files(source: Source) -> dict[str, str]:
    """The files `.weight`, `.group` and `.base_margin` beside a text file, by that suffix.

    If there are several files they are refused: to which rows they belong would be a guess.
    """
    if source.format not in ("libsvm", "csv"):
        return {}
    found = {
        suffix: file + suffix
        for file in source.files
        for suffix in SIDE_FILES
        if Path(file + suffix).exists()
    }
    if found and len(source.files) > 1:
        raise DataError(
            f"{next(iter(found.values()))} stands beside one of {len(source.files)} files, which "
            "is not supported. Put all rows into one file, or weights and qid into the lines."
        )
    return found


# ---- within ------------------------------------------------------------------------------------


def _part(word: str, default: str) -> Source:
    rest, _, cache = word.partition("#")
    if "#" in cache:
        raise DataError(f"{word}: only one # is allowed, before the name of the cache.")
    names, _, query = rest.partition("?")
    options = {}
    for pair in filter(None, query.split("&")):
        name, equals, value = pair.partition("=")
        if not equals:
            raise DataError(f"{word}: {pair} is not an option; they are written ?name=value&….")
        options[name] = unquote(value)
    files = [file for name in names.split(";") if name for file in _files(name)]
    if not files:
        raise DataError(f"{word!r} names no file.")
    form = options.pop("format", "") or _format(files, default)
    if form == "libfm":
        raise DataError(f"{word}: format=libfm is not supported. Write the file as LibSVM.")
    if form != "buffer" and form not in _OPTIONS:
        known = ", ".join(_OPTIONS)
        raise DataError(f"{word}: unknown format={form}. Known formats: {known}.")
    for name in options:
        if name not in _OPTIONS.get(form, ()):
            known = ", ".join(sorted(_OPTIONS.get(form, ()))) or "none"
            raise DataError(f"{word}: {form} has no option {name}; it has {known}.")
    if form == "csv" and "delimiter" not in options and Path(_plain(files[0])).suffix == ".tsv":
        options["delimiter"] = "\t"
    return Source(tuple(files), form, options, cache)


def _files(name: str) -> list[str]:
    scheme, found, path = name.partition("://")
    if found:
        if scheme != "file":
            raise DataError(
                f"{name}: files are read from file systems only, not by {scheme}. "
                "Copy or mount it where every rank sees it."
            )
        name = path
    name = os.path.expanduser(name)  # noqa: PTH111 (it stays as it was written)
    if Path(name).is_dir():
        inside = [each for each in Path(name).iterdir() if not each.name.startswith((".", "_"))]
        names = [str(each) for each in inside if each.is_file()]
        none = "this folder has no files"
    elif has_magic(name) and not Path(name).exists():
        names, none = glob(name), "no file has such a name"  # noqa: PTH207
    else:
        return [name]
    files = sorted(each for each in names if not each.endswith(SIDE_FILES))
    if not files:
        raise DataError(f"{name}: {none}.")
    return files


def _plain(file: str) -> str:
    return file.removesuffix(".gz")


def _format(files: Sequence[str], default: str) -> str:
    forms = {_SUFFIXES.get(Path(_plain(file)).suffix.lower(), "") for file in files}
    if len(forms) > 1:
        raise DataError(f"{', '.join(files)}: these are files of several formats.")
    form = forms.pop()
    if form:
        return form
    with open(files[0], "rb") as file:  # noqa: PTH123
        if file.read(4) == b"\x01\xab\xff\xff":  # what DMatrix.save_binary writes
            return "buffer"
    if default:
        return default
    raise DataError(
        f"{files[0]}: unknown format. Give it: {files[0]}?format=libsvm (or csv, parquet, npz)."
    )


def _spell(source: Source) -> str:
    return "&".join([source.format, *(f"{key}={value}" for key, value in source.options.items())])
