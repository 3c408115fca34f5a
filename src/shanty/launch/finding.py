"""What a check found: one thing that is not as it should be, on one host."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How bad a finding is."""

    ERROR = "error"  # a run cannot work, or will hang
    WARNING = "warning"  # a run works, but slower than it could, or some scripts will fail
    NOTE = "note"  # worth knowing; shanty deals with it by itself


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of a check.

    `code` is stable and one of `doctor.codes.CODES`; `host` is what the user calls the host, ""
    for the machine at which the command was typed. `what` is one sentence without a full stop,
    `evidence` what was seen, `fix` what to do. `command` is a command to paste that does it, ""
    where there is none; `fixable` says that `shanty doctor --fix` does it.
    """

    code: str
    level: Level
    host: str
    what: str
    evidence: str = ""
    fix: str = ""
    command: str = ""
    fixable: bool = False

    def to_json(self) -> dict[str, Any]:
        """The finding as plain JSON."""
        return {**asdict(self), "level": self.level.value}
