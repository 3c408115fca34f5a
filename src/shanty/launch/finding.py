"""One result of a check, its text, and the error that findings are for a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from shanty.runtime.errors import PrepareError


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
    fixable: bool = field(default=False, kw_only=True)

    def to_json(self) -> dict[str, Any]:
        """Returns the finding as plain JSON."""
        return {**asdict(self), "level": self.level.value}


class FoundError(PrepareError):
    """A run cannot work; the error says all that the checks found."""


def refused(errors: Sequence[Finding]) -> FoundError:
    """Makes one error of the findings that keep a run from working."""
    if len(errors) == 1:
        (one,) = errors
        return FoundError(f"{_with_host(one)} [{one.code}]", one.evidence, one.fix)
    indent = "\n       "
    return FoundError(
        f"{len(errors)} things keep this run from working",
        indent.join(f"{_with_host(one)} [{one.code}]" for one in errors),
        indent.join(dict.fromkeys(f"{one.host}: {one.fix}" for one in errors if one.fix)),
    )


def sentence(finding: Finding) -> str:
    """Returns a finding in one line."""
    evidence = f" ({finding.evidence})" if finding.evidence else ""
    cure = f"; {finding.fix}" if finding.fix else ""
    return f"{_with_host(finding)}{evidence}{cure} [{finding.code}]"


def tell(found: Sequence[Finding], warn: Callable[[str], None]) -> None:
    """Passes warnings to `warn`; FoundError where there are errors."""
    errors = [each for each in found if each.level is Level.ERROR]
    if errors:
        raise refused(errors)
    for each in found:
        if each.level is Level.WARNING:
            warn(sentence(each))


def _with_host(finding: Finding) -> str:
    return f"{finding.host}: {finding.what}" if finding.host else finding.what
