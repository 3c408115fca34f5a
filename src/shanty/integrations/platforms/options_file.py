"""Reads and writes the file of --optionsFile: YAML with the flags of a verb, without dashes.

Typed flags override those of the file. A key that is not a flag is an error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from shanty.client.context import note
from shanty.client.terminal.grouped import GroupedCommand
from shanty.client.terminal.options import completed
from shanty.runtime.errors import NotFoundError, StorageError, UsageError
from shanty.runtime.suggestions import nearest, place

_LISTS = {"datasets": "dataset"}  # of objects; each key is that of a flag without this word
_WANTED = "shanty.options_file"  # in what click keeps of a call: the file to write
_NOT_IN_FILES = ("options_file", "create_options_file", "help")
_SECRET = re.compile("password|apiKey|secret", re.IGNORECASE)  # never written


class FileCommand(GroupedCommand):
    """A verb with --optionsFile and --createOptionsFile."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options; the file is written when all of them are known."""
        rest = super().parse_args(ctx, args)
        path = ctx.meta.pop(_WANTED, None)
        if path is not None:
            _write(ctx, path)
            ctx.exit()
        return rest


def options_file(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a verb --optionsFile and --createOptionsFile."""
    return _read_option(_create_option(command))


_read_option = click.option(
    "--optionsFile", "options_file", type=Path, metavar="FILE", is_eager=True,
    expose_value=False, callback=lambda ctx, _param, path: _take(ctx, path),
    shell_complete=completed("files"), help="Flags from a YAML file; what is typed wins.",
)  # fmt: skip
_create_option = click.option(
    "--createOptionsFile", "create_options_file", type=Path, metavar="FILE",
    expose_value=False, callback=lambda ctx, _param, path: ctx.meta.update({_WANTED: path}),
    shell_complete=completed("files"),
    help="Write such a file, with what is typed, and do nothing else.",
)  # fmt: skip


def _flags(command: click.Command) -> dict[str, click.Option]:
    """Return the options of a verb by all their long names."""
    return {
        name[2:]: each
        for each in command.params
        if isinstance(each, click.Option) and each.name not in _NOT_IN_FILES
        for name in each.opts
        if name.startswith("--")
    }


def _take(ctx: click.Context, path: Path | None) -> None:
    """Make what the file says the verb's defaults."""
    if path is not None and not ctx.resilient_parsing:
        ctx.default_map = {**(ctx.default_map or {}), **defaults(ctx.command, path)}


def defaults(command: click.Command, path: Path) -> dict[str, Any]:
    """Return the values of a file by their parameters, as click takes them; UsageError if bad."""
    flags, found = _flags(command), dict[str, Any]()
    for key, value in _read(path).items():
        if key in _LISTS and isinstance(value, list):
            found.update(_columns(_LISTS[key], value, flags, path))
            continue
        option = flags.get(key)
        if option is None:
            raise _unknown(key, flags, path)
        if value is not None:
            assert option.name is not None
            found[option.name] = _value(option, key, value, path)
    return found


def _read(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise NotFoundError(f"options file {path} not found") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}", str(error)) from error
    try:
        values = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(f"{path} is not valid YAML", " ".join(str(error).split())) from error
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UsageError(f"{path} has no flags", fix="write one a line, as name: mpi-test")
    return {str(key): value for key, value in values.items()}


def _unknown(key: str, flags: Iterable[str], path: Path, of: str = "") -> UsageError:
    where = place(path, path.read_text(encoding="utf-8"), key)
    fix = nearest(key, flags, "--createOptionsFile FILE writes all that it has")
    return UsageError(f"{where}: {key!r}{of} is not a flag of this command", fix=fix)


def _value(option: click.Option, key: str, value: Any, path: Path) -> Any:
    """Return a value of YAML as it would be typed."""
    if isinstance(value, dict):
        return value if option.type.name == "JSON" else _plain(value, key, path)
    if option.multiple:
        return [_plain(each, key, path) for each in (value if isinstance(value, list) else [value])]
    return value if option.is_flag and isinstance(value, bool) else _plain(value, key, path)


def _plain(value: Any, key: str, path: Path) -> str:
    if isinstance(value, (dict, list)) or value is None:
        raise UsageError(f"{key} in {path} is to be one value, not {value!r}")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _columns(
    word: str, rows: list[Any], flags: Mapping[str, click.Option], path: Path
) -> dict[str, list[str]]:
    """Return a list of objects as the lists of their values, as one would repeat the flags."""
    keys = list(dict.fromkeys(key for row in rows if isinstance(row, dict) for key in row))
    found: dict[str, list[str]] = {}
    for key in map(str, keys):
        option = flags.get(f"{word}{key[:1].upper()}{key[1:]}")
        if option is None or option.name is None:
            known = [name[len(word) :].lower() for name in flags if name.startswith(word)]
            raise _unknown(key, known, path, f" of {word}s")
        values = [row.get(key) for row in rows if isinstance(row, dict)]
        if any(value is not None for value in values):
            found[option.name] = ["" if value is None else str(value) for value in values]
    return found


def _write(ctx: click.Context, path: Path) -> None:
    """Write what was typed, and the other flags without a value."""
    import yaml

    values: dict[str, Any] = {}
    for option in {id(each): each for each in _flags(ctx.command).values()}.values():
        name = next(each[2:] for each in option.opts if each.startswith("--"))
        value = ctx.params.get(option.name or "")
        plain = list(value) if isinstance(value, tuple) else value
        values[name] = None if plain == [] or _SECRET.search(name) else plain
    text = yaml.safe_dump(values, default_flow_style=False, sort_keys=False)
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise UsageError(
            f"{path} is there already", fix="name another one, or remove it"
        ) from error
    except OSError as error:
        raise StorageError(f"{path} cannot be written", error.strerror or "") from error
    note(f"{path} is written; use it with --optionsFile {path}")
