"""Runs the cells of a notebook in a rank: `python -m shanty.tasks.cells`.

Rank 0 reads orders from its standard input and sends them to the others over MPI. A rank that waits
takes almost no CPU: rank 0 waits for its input, the others sleep and poll MPI. The ranks end when
the input ends, so they never outlive their notebook.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import getpass
import inspect
import io
import linecache
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import Any, NoReturn

from shanty.tasks.cell_channel import PULL, PUSH, Order, Outcome, Shown

_QUICK, _SLOW = 0.001, 0.01  # seconds of the shortest nap, and of the longest
_SHARE = 0.001  # length of the next nap, as a share of the time waited so far
_LARGEST = 64 << 20  # bytes of a value that is sent without being asked for
_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
_LAST = 5.0  # seconds that a cell may go on without its notebook
_LONGEST = 10_000  # characters shown in place of a value that is not sent


class _TooLargeError(OSError):
    """A value is larger than what is sent unasked."""


class _Limited(io.BytesIO):
    def write(self, data: Any, /) -> int:
        if self.tell() + memoryview(data).nbytes > _LARGEST:
            raise _TooLargeError
        return super().write(data)


class _Input:
    """Rank 0's standard input, read by a thread; the cells find it empty."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(0), "rb")
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0, inheritable=True)
        os.close(nothing)
        self.orders: queue.SimpleQueue[Order | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True, name="shanty-orders").start()

    def _read(self) -> None:
        from shanty.tasks.cell_channel import read_order

        order: Order | None = None
        with contextlib.suppress(OSError):
            while (order := read_order(self._file)) is not None:
                self.orders.put(order)
        self.orders.put(None)
        time.sleep(_LAST)  # then a cell is still running, here or in another rank
        os.write(2, b"shanty: the notebook is gone, so its ranks end\n")
        os._exit(1)


def _no_answer(*_words: object, **_more: object) -> NoReturn:
    """Stand in for what asks the user: `input`, `breakpoint`."""
    raise EOFError(
        "ranks of a notebook cannot ask the user; ask in a cell without %%ranks, "
        "and give the answer to the ranks: %ranks push NAME"
    )


def _frames_of_cell(error: BaseException) -> TracebackType | None:
    """Return the traceback from the cell's first line on; None where the cell had not begun."""
    from shanty.tasks.outcome import own_frames_off

    trace = error.__traceback__
    while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<cell "):
        trace = trace.tb_next
    theirs: TracebackType | None = own_frames_off(error)  # as of a value that is sent
    return theirs if trace is None and theirs is not error.__traceback__ else trace


def _not_now(_number: int, _frame: FrameType | None) -> None:
    """Take an interrupt that comes while no cell is at work."""


def _end_child() -> NoReturn:
    """End a child process that a cell has forked when the cell ends in it: it is not a rank."""
    error = sys.exc_info()[1]
    if error is not None and not isinstance(error, SystemExit):
        from shanty.tasks.outcome import own_frames_off

        traceback.print_exception(error.with_traceback(own_frames_off(error)))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(0 if error is None else 1)


class _Server:
    """One rank, for as long as the notebook has it."""

    def __init__(self, rank: int) -> None:
        from mpi4py import MPI

        from shanty.runtime.rundir import RunDir

        self._rank = rank
        self._pid = os.getpid()
        self._input = _Input() if rank == 0 else None
        self._mpi = MPI
        self._comm = MPI.COMM_WORLD.Dup()  # a cell's messages are never taken for ours
        self._run = RunDir(Path(os.environ["SHANTY_RUN_DIR"]))
        self._files: list[Path] = []  # of the last order, which the notebook has read by the next
        self._loop: Any = None  # asyncio's, of cells with `await`
        builtins.input = getpass.getpass = sys.breakpointhook = _no_answer
        self._main = ModuleType("__main__")
        vars(self._main)["__builtins__"] = __builtins__
        sys.modules["__main__"] = self._main  # so that its classes travel by value
        signal.signal(signal.SIGINT, _not_now)

    def serve(self) -> None:
        """Take orders until the input ends."""
        while (order := self._next()) is not None:
            self._tell(self._obey(order))
        all_leave = self._comm.Ibarrier()
        while not all_leave.Test():  # one may be in a cell; in MPI_Finalize no thread could go on
            time.sleep(_QUICK)
        if "shanty.collectives.world" in sys.modules:  # while all are here
            sys.modules["shanty.collectives.world"].shutdown()

    def _next(self) -> Order | None:
        order = self._wait_for_cell()
        if self._input is None:
            return order
        others = range(1, self._comm.Get_size())
        sent = [self._comm.isend(order, dest=other) for other in others]
        while not self._mpi.Request.testall(sent)[0]:
            time.sleep(_QUICK)
        return order

    def _wait_for_cell(self) -> Order | None:
        if self._input is not None:
            return self._input.orders.get()
        since = time.monotonic()
        while not self._comm.iprobe(source=0):
            time.sleep(min(_SLOW, max(_QUICK, _SHARE * (time.monotonic() - since))))
        return self._comm.recv(source=0)  # type: ignore[no-any-return, unused-ignore]

    def _obey(self, order: Order) -> Outcome:
        from shanty.tasks.cell_channel import error_file
        from shanty.tasks.errors import ignores_outputs
        from shanty.tasks.outcome import pack_error

        for old in self._files:
            with contextlib.suppress(OSError):
                old.unlink()
        self._files.clear()
        error: BaseException | None = None
        value = None
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                found = self._do(order)
            finally:
                if os.getpid() != self._pid:
                    _end_child()
            signal.signal(signal.SIGINT, _not_now)
            if self._rank == 0 and (found is not None or order.kind == PULL):
                value = self._keep_value(order, found)
        except BaseException as raised:  # noqa: BLE001  whatever ends the cell
            signal.signal(signal.SIGINT, _not_now)
            error = None if ignores_outputs(raised) else raised
        outcome = Outcome(
            order.cell, self._rank, self._comm.Get_size(), os.uname().nodename, time.time(), value
        )
        if error is None:
            return outcome
        data = pack_error(error.with_traceback(_frames_of_cell(error)))
        self._keep(error_file(self._run, order.cell, self._rank), data)
        interrupted = isinstance(error, KeyboardInterrupt)
        return outcome._replace(error=len(data), interrupted=interrupted)

    def _do(self, order: Order) -> Any:
        names = vars(self._main)
        if order.kind == PUSH:
            from shanty.tasks import pickling

            names[order.name] = pickling.load(io.BytesIO(order.body))
            return None
        if order.kind == PULL:
            if order.name not in names:
                raise NameError(f"the ranks have no variable {order.name!r}")
            return names[order.name]
        source, name = order.body.decode(), f"<cell {order.cell}>"
        lines = source.splitlines(keepends=True)
        linecache.cache[name] = (len(source), None, lines, name)  # for tracebacks
        tree = compile(source, name, "exec", ast.PyCF_ONLY_AST | _AWAIT, dont_inherit=True)
        last = tree.body[-1] if tree.body else None
        if not isinstance(last, ast.Expr) or source.rstrip().endswith(";"):
            self._run_code(compile(tree, name, "exec", _AWAIT, dont_inherit=True))
            return None
        tree.body.pop()
        expression = compile(ast.Expression(last.value), name, "eval", _AWAIT, dont_inherit=True)
        self._run_code(compile(tree, name, "exec", _AWAIT, dont_inherit=True))
        return self._run_code(expression)

    def _run_code(self, code: CodeType) -> Any:
        """Run code of a cell; with an `await` outside of functions, in one loop for all cells."""
        found = eval(code, vars(self._main))  # noqa: S307  its purpose
        if not code.co_flags & inspect.CO_COROUTINE:
            return found
        import asyncio

        self._loop = self._loop or asyncio.new_event_loop()
        task = self._loop.create_task(found)
        try:
            return self._loop.run_until_complete(task)
        finally:
            if not task.done():  # the cell was interrupted
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    self._loop.run_until_complete(task)

    def _keep_value(self, order: Order, value: Any) -> int:
        """Keep a value, or a text in its place; return its size in bytes."""
        from shanty.tasks import pickling
        from shanty.tasks.cell_channel import value_file
        from shanty.tasks.errors import NotPicklableError

        file = io.BytesIO() if order.kind == PULL else _Limited()
        try:
            pickling.dump(value, file, order.name or f"the value of cell {order.cell}")
        except (NotPicklableError, _TooLargeError):
            if order.kind == PULL:
                raise
            file = io.BytesIO()
            pickling.dump(Shown(repr(value)[:_LONGEST]), file, "a text")
        data = file.getvalue()
        self._keep(value_file(self._run, order.cell, self._rank), data)
        return len(data)

    def _keep(self, path: Path, data: bytes) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(".tmp")
        temporary.write_bytes(data)
        temporary.replace(path)
        self._files.append(path)

    def _tell(self, outcome: Outcome) -> None:
        from shanty.tasks.cell_channel import as_line

        for number, stream in ((1, sys.stdout), (2, sys.stderr)):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
            os.write(number, as_line(outcome))


def main() -> None:
    """Serve as a rank of the notebook that has started us."""
    from shanty import _script
    from shanty.tasks.rank import enter

    enter("shanty.tasks.cells is started by `%%ranks`; by itself it has no notebook")
    _Server(_script.place(_script.RANK, "RANK", 0)).serve()


if __name__ == "__main__":
    main()
