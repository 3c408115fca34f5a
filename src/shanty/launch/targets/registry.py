"""All targets behind one: a job goes where it says, a run is asked about where it went."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from shanty.launch.settings import Settings
from shanty.launch.targets.base import Chunk, Handle, Planned, Reply, Stacks, Stop
from shanty.launch.targets.local import LocalTarget
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec, Status

if TYPE_CHECKING:
    from shanty.launch.targets.ssh import SshTarget


class Targets:
    """This machine, and hosts elsewhere.

    `say` hears what is done to prepare those, `warn` what is not as it should be there.
    """

    def __init__(
        self,
        home: Path,
        environ: Mapping[str, str],
        settings: Settings,
        say: Callable[[str], None] = lambda _text: None,
        warn: Callable[[str], None] = lambda _text: None,
        *,
        terminal: bool = False,
    ) -> None:
        self.settings = settings
        self.local = LocalTarget(home, environ, settings)
        self._hosts = (home, environ, settings, say, warn, terminal)

    @cached_property
    def hosts(self) -> SshTarget:
        """The target for other hosts; what it needs is imported only when it is."""
        from shanty.launch.targets.ssh import SshTarget

        home, environ, settings, say, warn, terminal = self._hosts
        return SshTarget(home, environ, settings, say, warn, terminal=terminal)

    def plan(self, job: JobSpec, run: RunDir) -> Planned:
        """Find out what is there for `job` and decide everything; nothing is put anywhere yet."""
        target = self.hosts if job.on or job.hostfile else self.local
        return target.plan(job, run)

    def for_run(self, handle: Handle) -> LocalTarget | SshTarget:
        """Where the run went."""
        return self.hosts if handle.run.site.exists() else self.local

    def poll(self, handles: Collection[Handle]) -> Mapping[Handle, Status]:
        """Where the runs stand."""
        return {handle: self.for_run(handle).poll([handle])[handle] for handle in handles}

    def fetch(self, handle: Handle, path: PurePosixPath, offset: int) -> Chunk:
        """The next piece of one of the run's files: all of them are, or are copied, here."""
        return self.local.fetch(handle, path, offset)

    def ask(self, handle: Handle, request: Stacks | Stop) -> Reply:
        """Ask the run's controller."""
        return self.for_run(handle).ask(handle, request)
