"""All targets behind one: a job goes where it says, a run is asked about where it went."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from shanty.launch.settings import Settings
from shanty.launch.targets.base import Chunk, Handle, Reply, Stacks, Stop
from shanty.launch.targets.local import LocalTarget
from shanty.runtime.mpi.layout import Layout
from shanty.runtime.rundir import RunDir
from shanty.runtime.spec import JobSpec, Status

if TYPE_CHECKING:
    from shanty.launch.targets.hosts import HostsTarget


@dataclass(frozen=True, slots=True)
class Planned:
    """A job that could be run now: `render` shows it, `submit` runs it.

    `submit` is given the descriptor that rank 0 will read; `takes_long` is true where it has to
    prepare hosts first.
    """

    raw: bool
    layout: Layout
    render: Callable[[], str]
    submit: Callable[[int], Handle]
    takes_long: bool


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
    def hosts(self) -> HostsTarget:
        """The target for other hosts; what it needs is imported only when it is."""
        from shanty.launch.targets.hosts import HostsTarget

        home, environ, settings, say, warn, terminal = self._hosts
        return HostsTarget(home, environ, settings, say, warn, terminal=terminal)

    def plan(self, job: JobSpec, run: RunDir) -> Planned:
        """Find out what is there for `job` and decide everything; nothing is put anywhere yet."""
        if job.on or job.hostfile:
            hosts = self.hosts
            there = hosts.plan(job, hosts.survey(job), run)
            return Planned(
                there.raw, there.layout, there.render, partial(hosts.submit, job, there, run), True
            )
        local = self.local
        here = local.plan(job, local.survey(job), run)
        return Planned(
            here.raw, here.layout, here.render, partial(local.submit, job, here, run), False
        )

    def for_run(self, handle: Handle) -> LocalTarget | HostsTarget:
        """Where the run went."""
        return self.hosts if handle.run.site.exists() else self.local

    def poll(self, handles: Collection[Handle]) -> Mapping[Handle, Status]:
        """Ask each target once about all of its runs: runs that do not answer share one bound."""
        groups: dict[LocalTarget | HostsTarget, list[Handle]] = {}
        for handle in handles:
            groups.setdefault(self.for_run(handle), []).append(handle)
        return {
            handle: status
            for target, its in groups.items()
            for handle, status in target.poll(its).items()
        }

    def fetch(self, handle: Handle, path: PurePosixPath, offset: int) -> Chunk:
        """The next piece of one of the run's files: all of them are, or are copied, here."""
        return self.local.fetch(handle, path, offset)

    def ask(self, handle: Handle, request: Stacks | Stop) -> Reply:
        """Ask the run's controller."""
        return self.for_run(handle).ask(handle, request)
