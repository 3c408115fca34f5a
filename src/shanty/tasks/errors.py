"""The errors that a task raises, apart from those of its function."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from shanty.runtime.errors import ShantyError

if TYPE_CHECKING:
    from shanty.client.runs import Run
    from shanty.runtime.spec import Failure


class IgnoreOutputs(Exception):  # noqa: N818  the name that Flyte's users know
    """Raised in a rank to drop its value; that is not a failure."""


class RunError(ShantyError):
    """A run did not succeed, and no exception of its function says why.

    `run` is the run, `failure` what is known of the cause: rank, host, signal, last lines; None
    for a run that was stopped. `cause` is "memory", "preempted", "host" or "". `exit_code` is that
    of the run, where it has one.
    """

    def __init__(
        self,
        what: str,
        run: Run | None = None,
        failure: Failure | None = None,
        *,
        why: str = "",
        fix: str = "",
        log: str = "",
    ) -> None:
        super().__init__(what, why, fix)
        self.run = run
        self.failure = failure
        self.log = log

    def __str__(self) -> str:
        lines = [super().__str__()]
        if self.log:
            lines.append("  log: " + self.log)
        lines += [f"  | {line}" for line in (self.failure.lines if self.failure else ())[-20:]]
        return "\n".join(lines)

    @property
    def cause(self) -> str:
        """Why it failed, where that is not in the function: "memory", "preempted" or "host"."""
        return self.failure.cause if self.failure else ""


class NotPicklableError(TypeError):
    """A function, an argument or a value cannot be sent between processes; it is named."""


class RemoteTraceback(Exception):  # noqa: N818  the cause of an exception, never raised alone
    """The traceback of a rank, as the cause of the exception that it raised."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


def of_a_rank(error: BaseException) -> bool:
    """Return whether an exception is what a rank raised."""
    return isinstance(error.__cause__, RemoteTraceback)


def without_our_frames(error: BaseException) -> BaseException:
    """Return an error of a rank or of a run without the frames of the code that waited for it.

    Other errors, which may be bugs of shanty, keep their frames.
    """
    if isinstance(error, ShantyError) or of_a_rank(error):
        return error.with_traceback(None)
    return error


def ignores_outputs(error: BaseException) -> bool:
    """Return whether an exception is `IgnoreOutputs`, ours or Flyte's."""
    names: Any = ((each.__module__, each.__name__) for each in type(error).__mro__)
    return any(
        name == "IgnoreOutputs" and module.partition(".")[0] in ("shanty", "flytekit")
        for module, name in names
    )
