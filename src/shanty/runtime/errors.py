"""Defines every error that shanty raises on purpose.

    ShantyError            70   a bug or a limit of shanty itself
    ├── UsageError          2   the command or a setting makes no sense
    │   └── TranslationError    a launcher's flag has no counterpart in the MPI in use
    ├── NotFoundError      66   no such run, script, host file or MPI
    ├── PrepareError       69   something that a run needs is not there and could not be had
    ├── LaunchError        71   the ranks could not be started
    ├── WorldError         72   the ranks started, but did not join one world
    ├── StorageError       73   a folder cannot be written, or the disk is full
    └── LostError          75   the run's agent is gone, so its end is not known

The number is the exit code. 76: no rank made progress, and the run was to end then (`--on-stall
stop`). 124: it reached its time limit. 143: someone stopped it. A rank's own failure is no
exception of shanty's: `shanty run` passes the rank's exit code on, or 128 + the number of the
signal that ended it.
"""

from __future__ import annotations


class ShantyError(Exception):
    """What happened, why, and what to do about it.

    `what` is one sentence without a full stop; `why` and `fix` may be empty.
    """

    exit_code = 70

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        lines = [self.what]
        if self.why:
            lines.append("  why: " + self.why)
        if self.fix:
            lines.append("  fix: " + self.fix)
        return "\n".join(lines)


class UsageError(ShantyError):
    """The command or a setting makes no sense as it stands."""

    exit_code = 2


class TranslationError(UsageError):
    """A flag of the user's launcher line has no counterpart in the MPI in use; it is named."""


class NotFoundError(ShantyError):
    """No such run, script, host file or MPI."""

    exit_code = 66


class PrepareError(ShantyError):
    """Something that a run needs is missing and could not be installed or made."""

    exit_code = 69


class LaunchError(ShantyError):
    """The ranks could not be started."""

    exit_code = 71


class WorldError(ShantyError):
    """The ranks started but did not join one MPI world on the hosts meant for them."""

    exit_code = 72


class StorageError(ShantyError):
    """A folder that shanty needs cannot be written, or its disk is full."""

    exit_code = 73


class LostError(ShantyError):
    """The agent of a run is gone, so how the run ended is not known."""

    exit_code = 75


STALL_EXIT = 76  # no rank made progress, and the run was to end then
TIME_LIMIT_EXIT = 124  # what timeout(1) returns as well
STOPPED_EXIT = 143  # 128 + SIGTERM, for a run that someone stopped
