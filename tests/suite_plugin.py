"""Hooks for the whole suite; pyproject.toml loads them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import flaky
import rotation
import timings
from runs import STARTED

_TIMES = pytest.StashKey[dict[str, float]]()


def pytest_configure(config: pytest.Config) -> None:
    """Read once what all workers of pytest-xdist have to agree on."""
    os.environ["SHANTY_TEST_DAY"] = str(rotation.today())
    given = getattr(config, "workerinput", {}).get("times")
    config.stash[_TIMES] = timings.recorded(config.rootpath) if given is None else given


def pytest_sessionstart(session: pytest.Session) -> None:
    """Save 40 ms a test: pytest-rerunfailures sends twice before it reads, over a socket.

    Without this option, TCP waits for the other end to acknowledge the first packet.
    """
    retries = getattr(session.config, "failures_db", None)
    if hasattr(retries, "sock"):
        retries.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand a worker what this process has read."""
    node.workerinput["times"] = node.config.stash[_TIMES]


def pytest_report_header(config: pytest.Config) -> str:
    """The day, with which a selection can be repeated."""
    known = len(config.stash[_TIMES])
    return f"SHANTY_TEST_DAY={rotation.today()}, durations of {known} tests are known"


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Iterator[None]:
    """Sort the tests after all other hooks have left some out and put others into groups."""
    yield
    if getattr(config.option, "loadgroup", False):  # else they run in the order of the files
        timings.by_duration(items, config.stash[_TIMES])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Hand the process that controls the workers what this one has started."""
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["started"] = dict(STARTED)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Add up what the workers have started."""
    STARTED.update(getattr(node, "workeroutput", {}).get("started", {}))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """List the tests that passed on a retry, and say how many runs the tests have started."""
    if not hasattr(config, "workerinput"):  # a worker has a summary too, which nobody sees
        flaky.show(terminalreporter, config.rootpath)
        if STARTED:
            count = STARTED["run"]
            terminalreporter.write_line(f"launches: {count} (of {STARTED.total()} commands)")
