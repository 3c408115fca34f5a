"""Reads what a user has set for good, in `<home>/config.toml` (see `Settings`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shanty.runtime.errors import UsageError
from shanty.runtime.rundir import not_allowed
from shanty.runtime.suggestions import nearest, place

if TYPE_CHECKING:
    from shanty.launch.options.declared import Declared

FILE = "config.toml"
CHOICES = {"on_stall": ("warn", "stop"), "alone": ("warn", "stop", "ok")}


@dataclass(frozen=True, slots=True)
class Settings:
    """Holds the settings, with their defaults.

    `keep_runs`: ended runs that are kept before the oldest is removed. `log_limit`: bytes kept
    of each rank's output; of what comes after only the end is. `stop_grace`: seconds between
    SIGTERM and SIGKILL when a run is stopped. `stall_after`: seconds without any progress after
    which a run counts as stalled, 0 for never; `on_stall`: "warn" or "stop" it then. `alone`:
    "warn" or "stop" where ranks each train by themselves, "ok" to say nothing. `targets`: for each
    target that has sites, by its scheme, its options for all runs and a table of them for each
    site.
    """

    keep_runs: int = 200
    log_limit: int = 2 << 30
    stop_grace: float = 5.0
    stall_after: float = 60.0
    on_stall: str = "warn"
    alone: str = "warn"
    targets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def load(home: Path) -> Settings:
    """Read the settings of `home`; UsageError when the file is damaged or names unknown ones."""
    path = home / FILE
    values = read_toml(path)
    usual = {name: getattr(Settings(), name) for name in Settings.__slots__ if name != "targets"}
    targets = {key: value for key, value in values.items() if key not in usual}
    if targets:
        _check_targets(targets, usual, path)
    own = {key: value for key, value in values.items() if key in usual}
    for key, value in own.items():
        if key in CHOICES:
            choice(key, value, f"{key} in {path}")
        elif not isinstance(value, (int, float)) or isinstance(value, bool) or value < 0:
            raise UsageError(f"{key} in {path} must be a number, not {value!r}")
        else:
            own[key] = type(usual[key])(value)
    return Settings(**own, targets=targets)


def _check_targets(tables: Mapping[str, Any], usual: Collection[str], path: Path) -> None:
    """Raise UsageError for tables that are not those of targets with sites."""
    from shanty.launch.options.known import BUILTIN  # most users have no such table

    targets = {each.scheme: each for each in BUILTIN if each.sites}
    for key, table in tables.items():
        if key not in targets:
            raise _unknown(key, [*usual, *targets], "", path)
        _check_sites(table, targets[key], path)


def _check_sites(table: Any, target: Declared, path: Path, site: str = "") -> None:
    """Raise UsageError for a table that has other things than options of a target, or of a site."""
    name = f"{target.scheme}.{site}" if site else target.scheme
    if not isinstance(table, dict):
        fix = f"write it as [{target.scheme}] or [{target.scheme}.SITE]"
        raise UsageError(f"{name} in {path} must be a table", fix=fix)
    known: dict[str, tuple[type, ...]] = {"login": (str,)} if site else {}
    known |= {key: option.toml for key, option in target.keys.items()}
    for key, value in table.items():
        if isinstance(value, dict) and not site:
            _check_sites(value, target, path, key)
        elif key not in known:
            raise _unknown(key, known, name, path)
        elif type(value) not in known[key]:
            raise UsageError(f"{key} of {name} in {path} cannot be {value!r}")


def _unknown(key: str, known: Collection[str], table: str, path: Path) -> UsageError:
    """Return the error for an unknown key, with its line."""
    where = place(path, path.read_text(encoding="utf-8"), key)
    of = f" of [{table}]" if table else ""
    fix = nearest(key, known, f"known are {', '.join(known)}")
    return UsageError(f"{where}: unknown setting {key!r}{of}", fix=fix)


def choice(key: str, word: Any, where: str) -> str:
    """Check a word for `key` of CHOICES; `where` it stands is for the UsageError."""
    if word not in CHOICES[key]:
        raise UsageError(f"{where} takes {' or '.join(CHOICES[key])}, not {word!r}")
    return str(word)


def read_toml(path: Path) -> dict[str, Any]:
    """Read the tables of a TOML file; empty when it is absent, UsageError when it is damaged."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except PermissionError as error:
        raise not_allowed(str(path), error) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {path}", str(error)) from error
    import tomllib

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not valid TOML", str(error), "correct that line") from error
