"""Reads what a user has set for good, in `<home>/config.toml` (see `Settings`)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shanty.runtime.errors import UsageError
from shanty.runtime.rundir import not_allowed
from shanty.runtime.unknown import nearest, place

FILE = "config.toml"
SLURM_KEYS = {  # the fields of JobSpec that are for Slurm only
    "partition": str, "account": str, "qos": str, "nodes": int, "constraint": str,
    "reservation": str, "exclusive": bool, "requeue": bool, "slurm": str,
}  # fmt: skip
KUBERNETES_KEYS = (  # those that are for Kubernetes only
    "uid", "node_selector", "tolerations", "service_account", "priority_class", "pull_secrets",
    "labels", "queue", "k8s_patch", "operator", "schedule_timeout", "keep",
)  # fmt: skip
CHOICES = {"on_stall": ("warn", "stop"), "alone": ("warn", "stop", "ok")}


@dataclass(frozen=True, slots=True)
class Settings:
    """Holds the settings, with their defaults.

    `keep_runs`: ended runs that are kept before the oldest is removed. `log_limit`: bytes kept
    of each rank's output; of what comes after only the end is. `stop_grace`: seconds between
    SIGTERM and SIGKILL when a run is stopped. `stall_after`: seconds without any progress after
    which a run counts as stalled, 0 for never; `on_stall`: "warn" or "stop" it then. `alone`:
    "warn" or "stop" where ranks each train by themselves, "ok" to say nothing. `slurm`: options
    for Slurm, and tables of such for its sites (`SLURM_KEYS`).
    """

    keep_runs: int = 200
    log_limit: int = 2 << 30
    stop_grace: float = 5.0
    stall_after: float = 60.0
    on_stall: str = "warn"
    alone: str = "warn"
    slurm: Mapping[str, Any] = field(default_factory=dict)


def load(home: Path) -> Settings:
    """Read the settings of `home`; UsageError when the file is damaged or names unknown ones."""
    path = home / FILE
    values = read_toml(path)
    usual = {name: getattr(Settings(), name) for name in Settings.__slots__ if name != "slurm"}
    for key, value in values.items():
        if key == "slurm":
            _check_slurm(value, "slurm", path, sites=True)
        elif key in CHOICES:
            choice(key, value, f"{key} in {path}")
        elif key not in usual:
            raise _unknown(key, [*usual, "slurm"], "", path)
        elif not isinstance(value, (int, float)) or isinstance(value, bool) or value < 0:
            raise UsageError(f"{key} in {path} must be a number, not {value!r}")
        else:
            values[key] = type(usual[key])(value)
    return Settings(**values)


def _check_slurm(table: Any, name: str, path: Path, *, sites: bool) -> None:
    """Raise UsageError for a table of options for Slurm that is none."""
    if not isinstance(table, dict):
        raise UsageError(
            f"{name} in {path} must be a table", fix="write it as [slurm] or [slurm.SITE]"
        )
    known = SLURM_KEYS if sites else {"login": str, **SLURM_KEYS}
    for key, value in table.items():
        if isinstance(value, dict) and sites:
            _check_slurm(value, f"slurm.{key}", path, sites=False)
        elif key not in known:
            raise _unknown(key, known, name, path)
        elif type(value) is not known[key]:
            raise UsageError(f"{key} of {name} in {path} cannot be {value!r}")


def _unknown(key: str, known: Collection[str], table: str, path: Path) -> UsageError:
    """Return the error for a key that a file does not have, with its line."""
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
        text = path.read_text(encoding="utf-8")
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
