"""Watches the runs and reports changes: one thread for runs here, one for runs elsewhere.

Hosts that do not answer take their time, so runs that are elsewhere are asked apart.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from shanty.launch.index import Changes, Entry, Runs
from shanty.runtime import site
from shanty.runtime.errors import ShantyError

_EVERY, _EVERY_ELSEWHERE = 0.4, 1.5  # seconds between two looks
_ALL_AGAIN = 10.0  # seconds after which the folder is listed, changed or not
_BATCH = 200  # runs that are read at a look, at a first start
_MOST_PENDING = 2000  # changes that are kept for a client; with more it has to ask again


class Subscription:
    """What one client has not received yet: the newest state of each run that has changed."""

    def __init__(self) -> None:
        self.pending: dict[str, Entry | None] = {}  # None: it is gone
        self.overflown = False
        self.ready = asyncio.Event()

    def take(self) -> dict[str, Entry | None]:
        """Return what is pending, and forget it."""
        self.ready.clear()
        pending, self.pending = self.pending, {}
        return pending


class Hub:
    """Passes changes on to all clients; used in the event loop only."""

    def __init__(self) -> None:
        self._subscriptions: set[Subscription] = set()

    def subscribe(self) -> Subscription:
        """Return what from now on collects changes, until it is given back."""
        subscription = Subscription()
        self._subscriptions.add(subscription)
        return subscription

    def unsubscribe(self, subscription: Subscription) -> None:
        """Collect no more for it."""
        self._subscriptions.discard(subscription)

    def publish(self, changes: Changes) -> None:
        """Tell all clients."""
        for subscription in self._subscriptions:
            subscription.pending.update((entry.id, entry) for entry in changes.entries)
            subscription.pending.update(dict.fromkeys(changes.gone))
            if len(subscription.pending) > _MOST_PENDING:
                subscription.overflown = True
                subscription.pending.clear()
            subscription.ready.set()

    def wake(self) -> None:
        """Wake all clients: the server ends."""
        for subscription in self._subscriptions:
            subscription.ready.set()


class Watcher:
    """Keeps the index up to date, in threads, and tells `tell` of each change."""

    def __init__(self, make_runs: Callable[[], Runs], tell: Callable[[Changes], None]) -> None:
        self._ended = threading.Event()
        self._tell = tell
        self._threads = [
            threading.Thread(target=self._work, args=(make_runs, *words), daemon=True)
            for words in (
                (lambda run: not site.exists(run), _EVERY),
                (site.exists, _EVERY_ELSEWHERE),
            )
        ]

    def start(self) -> None:
        """Begin to watch."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Watch no more. A thread that waits for a host is left to itself."""
        self._ended.set()
        self._threads[0].join(5)

    def _work(
        self, make_runs: Callable[[], Runs], wanted: Callable[[Path], bool], every: float
    ) -> None:
        runs = make_runs()
        stamp, listed, more = -1, 0.0, True
        while not self._ended.is_set():
            try:
                now, newest = time.monotonic(), _stamp(runs)
                if more or newest != stamp or now > listed + _ALL_AGAIN:
                    stamp, listed = newest, now
                    changes = runs.refresh(wanted, _BATCH)
                    more = len(changes.entries) >= _BATCH
                else:
                    changes = Changes(
                        runs.reread([run for run in runs.on() if wanted(run.path)]), []
                    )
                if changes.entries or changes.gone:
                    self._tell(changes)
            except ShantyError as error:
                print(f"shanty: {error}", file=sys.stderr, flush=True)
                self._ended.wait(_ALL_AGAIN)
            except Exception:  # noqa: BLE001  the pages go on, with what is known
                traceback.print_exc()
                self._ended.wait(_ALL_AGAIN)
            if not more:
                self._ended.wait(every)


def _stamp(runs: Runs) -> int:
    try:
        return runs.folder.stat().st_mtime_ns
    except OSError:
        return 0
