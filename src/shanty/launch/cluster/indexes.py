"""Which package index this user's pip and uv take packages from."""

from __future__ import annotations

import configparser
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

PYPI = "https://pypi.org/simple"


@dataclass(frozen=True, slots=True)
class Indexes:
    """The main index, and further ones that are asked as well; URLs as the user wrote them."""

    main: str
    more: tuple[str, ...] = ()

    def variables(self) -> dict[str, str]:
        """The settings as variables of uv's, for a host to use."""
        found = {"UV_DEFAULT_INDEX": self.main}
        if self.more:
            # pip takes the version that is asked for from whichever index has it; so do we.
            found |= {"UV_INDEX": " ".join(self.more), "UV_INDEX_STRATEGY": "unsafe-best-match"}
        return found


def configured(environ: Mapping[str, str], prefix: Path) -> Indexes:
    """The indexes of the user's environment and of pip's configuration files.

    `prefix` is that of the Python environment, which may have a configuration of its own.
    Folders of this machine (`file:`) are left out, since no host has them.
    """
    files = {}
    if environ.get("PIP_CONFIG_FILE") != "/dev/null":
        files = _of_files(_config_files(environ, prefix))
    main = (
        environ.get("UV_DEFAULT_INDEX")
        or environ.get("UV_INDEX_URL")
        or environ.get("PIP_INDEX_URL")
        or files.get("index-url")
        or PYPI
    )
    more = " ".join(
        (
            environ.get("UV_INDEX", ""),
            environ.get("UV_EXTRA_INDEX_URL", ""),
            environ.get("PIP_EXTRA_INDEX_URL", files.get("extra-index-url", "")),
        )
    ).split()
    named = (url.split("=", 1)[1] if "=" in url.split(":", 1)[0] else url for url in more)
    return Indexes(main, tuple(url for url in dict.fromkeys(named) if _is_remote(url)))


def _is_remote(url: str) -> bool:
    return url.startswith(("https://", "http://"))


def _config_files(environ: Mapping[str, str], prefix: Path) -> Iterator[Path]:
    home = Path(environ.get("HOME", "~")).expanduser()
    yield Path("/etc/pip.conf")
    yield Path("/etc/xdg/pip/pip.conf")
    yield home / ".pip" / "pip.conf"
    if sys.platform == "darwin":
        yield home / "Library" / "Application Support" / "pip" / "pip.conf"
    yield Path(environ.get("XDG_CONFIG_HOME") or home / ".config") / "pip" / "pip.conf"
    yield prefix / "pip.conf"
    if environ.get("PIP_CONFIG_FILE"):
        yield Path(environ["PIP_CONFIG_FILE"])


def _of_files(paths: Iterable[Path]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in paths:
        parser = configparser.RawConfigParser(strict=False)
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= {
                    key.replace("_", "-"): value.strip()
                    for key, value in parser.items(section)
                    if key.replace("_", "-") in ("index-url", "extra-index-url")
                }
    return found
