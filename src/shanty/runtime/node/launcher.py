"""The launcher of a run, as a child of the node agent on the lead host."""

from __future__ import annotations

import os
import signal
from typing import Any, Mapping, Optional

from shanty.runtime import foreign_variables
from shanty.runtime.frames import FrameWriter, Output
from shanty.runtime.plan import Plan
from shanty.runtime.platform import cpu_numbers
from shanty.runtime.rank import redirect
from shanty.runtime.rundir import RunDir


class Launcher:
    """One process and what it writes; `code` is None while it lives."""

    def __init__(self, run: RunDir, plan: Plan) -> None:
        self._run = run
        self._plan = plan
        self._writer: Optional[FrameWriter] = None
        self.pid = 0
        self.code: Optional[int] = None
        self.output = Output(self._write)

    def start(self, environment: Mapping[str, str]) -> str:
        """Start it with `environment` added to ours; returns why that failed, or ""."""
        ends, actions = self.output.open(None)
        argv = list(self._plan.attempt.argv)
        # A user's own line on one machine may mean the allocation that it is in.
        misled = not self._plan.raw or self._plan.scripted
        there = foreign_variables.for_launcher(os.environ) if misled else dict(os.environ)
        environ = {**there, **environment}
        if misled and not self._plan.scripted:
            environ.update(foreign_variables.pass_on(os.environ))
        if self._plan.scripted:
            # A launcher starts its ranks elsewhere in the folder that it is in itself, by the
            # name that $PWD has for it: this one leads to the workspace on every host.
            argv = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', f"{self._plan.scratch}/work", *argv]
        environ["SHANTY_CPUS"] = cpu_numbers()
        environ["SHANTY_OUTPUT"] = " ".join(map(redirect.file_identity, ends))
        reset = [signal.SIGXFSZ, signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
        if self._plan.raw:  # as in a shell; our own launcher is to outlive a daemon's end
            reset.append(signal.SIGPIPE)
        kept = None if self._plan.raw else redirect.set_input_aside()
        if kept is not None:
            os.set_inheritable(kept, False)
            environ[redirect.INPUT] = redirect.offer_input(kept)
        try:
            self.pid = os.posix_spawn(
                find_program(argv[0], environ.get("PATH", os.defpath)),
                argv,
                environ,
                file_actions=actions,
                setpgroup=0,
                setsigdef=reset,
            )
        except OSError as error:
            self.code = 127
            return f"cannot run {argv[0]}: {error.strerror}"
        finally:
            for end in ends:
                os.close(end)
            os.close(0)
            os.open(os.devnull, os.O_RDONLY)  # the launcher alone reads the run's standard input
        return ""

    def show_partial(self) -> None:
        """Write down an unfinished line, such as a prompt."""
        if self._writer is not None and self._writer.has_partial:
            self._writer.flush()

    def finish(self) -> None:
        """Take its last output, which is in the pipes by now."""
        self.output.finish(None)
        if self._writer is not None:
            self._writer.close()

    def _write(self, _: Any, stream: int, data: bytes) -> None:
        if self._writer is None:
            path = str(self._run.launcher_log)
            os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)  # it may have been removed
            log = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._writer = FrameWriter(log, self._plan.limits.log_limit, path)
        self._writer.feed(stream, data)


def find_program(name: str, path: str) -> str:
    """Return the file that a shell would run for `name`; `name` itself if none is found."""
    if os.sep in name:
        return name
    for folder in path.split(os.pathsep):
        file = os.path.join(folder, name)
        if os.access(file, os.X_OK) and os.path.isfile(file):
            return file
    return name
