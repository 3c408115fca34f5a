"""Futures: waiting, cancelling, awaiting, without a run of any target."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import traceback
from typing import Any, cast

import pytest

from shanty.client.future import CancelledError, Future
from shanty.client.runs import Run
from shanty.runtime.errors import UsageError
from shanty.tasks.errors import RemoteTraceback, RunError


class Stoppable:
    """A run that goes on until it is stopped."""

    def __init__(self) -> None:
        self.stopped = threading.Event()

    def stop(self) -> None:
        self.stopped.set()


class Call:
    """A call that begins a run when it is told to, and returns what the run does."""

    def __init__(self, value: Any = "value") -> None:
        self.future: Future[Any] = Future()
        self.run = Stoppable()
        self.begin, self.end = threading.Event(), threading.Event()
        self._value = value
        self._thread = threading.Thread(target=self.future.fill, args=(self._work,), daemon=True)
        self._thread.start()

    def _work(self) -> Any:
        assert self.begin.wait(20)
        self.future.began(cast(Run, self.run))
        while not self.end.wait(0.01):
            if self.run.stopped.is_set():
                raise RuntimeError("stopped")
        if isinstance(self._value, BaseException):
            raise self._value
        return self._value

    def finish(self) -> None:
        self.begin.set()
        self.end.set()
        self._thread.join(20)


def test_a_value() -> None:
    call = Call()
    assert not call.future.done()
    with pytest.raises(TimeoutError):
        call.future.result(0.01)
    call.finish()
    assert (call.future.result(), call.future.exception()) == ("value", None)
    assert call.future.done()
    assert call.future.run is cast(Run, call.run)
    assert not call.future.cancel()
    assert not call.future.cancelled()


def test_an_exception() -> None:
    call = Call(ValueError("no"))
    call.finish()
    assert isinstance(call.future.exception(), ValueError)
    with pytest.raises(ValueError, match="no"):
        call.future.result()


def test_cancelled_while_it_runs() -> None:
    call = Call()
    call.begin.set()
    assert call.future.run
    assert call.future.cancel()
    with pytest.raises(CancelledError):
        call.future.result(20)
    assert call.run.stopped.is_set()
    assert call.future.cancelled()


def test_cancelled_before_it_begins() -> None:
    call = Call()
    assert call.future.cancel()
    call.begin.set()
    with pytest.raises(CancelledError):
        call.future.result(20)
    assert call.run.stopped.is_set()


def test_a_value_that_comes_too_late_is_dropped() -> None:
    """Whoever was told that it is cancelled finds it so."""
    call = Call()
    call.run.stop = lambda: None  # type: ignore[method-assign]
    call.begin.set()
    assert call.future.run
    assert call.future.cancel()
    call.finish()
    with pytest.raises(CancelledError):
        call.future.result()


def test_awaited() -> None:
    call = Call()

    async def work() -> Any:
        asyncio.get_running_loop().call_later(0.05, call.begin.set)
        asyncio.get_running_loop().call_later(0.1, call.end.set)
        return await call.future

    assert asyncio.run(work()) == "value"


def test_an_await_that_is_cancelled_stops_the_run() -> None:
    call = Call()
    call.begin.set()

    async def work() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call.future, 0.1)
        assert call.run.stopped.is_set()

    asyncio.run(work())
    with pytest.raises(CancelledError):
        call.future.result(20)
    assert call.future.cancelled()


def test_an_await_that_ends_with_an_iteration() -> None:
    """asyncio takes no StopIteration, and would wait for ever."""
    call = Call(StopIteration(3))
    call.finish()

    async def work() -> Any:
        return await asyncio.wait_for(call.future, 20)

    with pytest.raises(RuntimeError, match="StopIteration") as raised:
        asyncio.run(work())
    assert isinstance(raised.value.__cause__, StopIteration)


@pytest.mark.parametrize("of_a_rank", [True, False])
def test_an_interrupt_ends_the_thread_only_where_it_came(of_a_rank: bool) -> None:
    error = KeyboardInterrupt("no")
    if of_a_rank:
        error.__cause__ = RemoteTraceback("rank 1 on b:")

    def work() -> None:
        raise error

    future: Future[None] = Future()
    with contextlib.nullcontext() if of_a_rank else pytest.raises(KeyboardInterrupt):
        future.fill(work)
    assert future.exception() is error


def test_no_run_for_a_value_that_was_there() -> None:
    future: Future[int] = Future()
    assert future.fill(lambda: 3).run is None
    assert future.result() == 3


def frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


def told() -> ValueError:
    error = ValueError("of a rank")
    error.__cause__ = RemoteTraceback("rank 1 on b:")
    return error


@pytest.mark.parametrize("error", [told(), RunError("it failed"), UsageError("no such option")])
def test_errors_that_say_all_show_none_of_our_frames(error: BaseException) -> None:
    call = Call(error)
    call.finish()
    for _ in range(2):
        with pytest.raises(type(error)) as raised:
            call.future.result()
        assert frames(raised.value)[1:] == ["result"]  # after this function's own


def test_errors_of_our_own_keep_their_frames() -> None:
    call = Call(KeyError("a fault of ours"))
    call.finish()
    with pytest.raises(KeyError) as raised:
        call.future.result()
    assert "_work" in frames(raised.value)
