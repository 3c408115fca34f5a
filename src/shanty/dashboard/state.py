"""What all parts of the server share."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import cast

from fastapi import Request

from shanty.dashboard.downloads import Downloads
from shanty.dashboard.errors import Refused
from shanty.dashboard.users import OneUser, User, Users
from shanty.dashboard.watch import Hub
from shanty.launch.index import Runs, read_owner
from shanty.launch.settings import Settings
from shanty.launch.targets.base import Surroundings
from shanty.launch.targets.registry import Targets
from shanty.runtime.rundir import RunDir

STREAMS_PER_USER = 24
STREAMS = 256  # in all
SUBMISSIONS = 4  # runs that are being started at a time


@dataclass
class Dashboard:
    """The server's state: a home, its users, and what is being done now.

    `account` is the name of the account that serves, whose all runs are that have no owner.
    """

    home: Path
    environ: Mapping[str, str]
    settings: Settings
    users: Users | OneUser
    account: str = field(default_factory=lambda: account())
    hub: Hub = field(default_factory=Hub)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    submitting: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SUBMISSIONS))
    streams: Counter[str] = field(default_factory=Counter)
    downloads: Downloads = field(default_factory=Downloads)

    def targets(self) -> Targets:
        """Return targets of one's own: what they keep is for one thread."""
        return Targets(Surroundings(self.home, self.environ, self.settings))

    @cached_property
    def runs(self) -> Runs:
        """Return the runs, for reading in the index; only the watcher asks where they stand."""
        return Runs(self.home, self.targets())

    def owner(self, run: RunDir) -> str:
        """Return whose run it is."""
        return read_owner(run) or self.account

    @contextlib.contextmanager
    def stream(self, user: User) -> Iterator[None]:
        """Count a stream of events; 429 where there are too many."""
        if self.streams[user.name] >= STREAMS_PER_USER or self.streams.total() >= STREAMS:
            raise Refused(
                429,
                "too many streams of events are open",
                f"a user may have {STREAMS_PER_USER}, all together {STREAMS}",
                "close some pages",
            )
        self.streams[user.name] += 1
        try:
            yield
        finally:
            self.streams[user.name] -= 1


def account() -> str:
    """Return the name of the account that this process runs under."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # no entry in the password database
        return "me"


def of(request: Request) -> Dashboard:
    """Return the server's state."""
    return cast(Dashboard, request.app.state.dashboard)
