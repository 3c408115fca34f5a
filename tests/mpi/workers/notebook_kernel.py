"""Drives real Jupyter kernels: `python notebook_kernel.py CHECK…`, each prints `ok CHECK`.

It runs in an environment with ipykernel and jupyter_client. Every check has a kernel of its own.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import KernelManager

PATIENCE = 60  # seconds for one cell
ON = os.environ.get("NOTEBOOK_ON", "")  # options that say where the ranks are
CHECKS: dict[str, Callable[[], None]] = {}


def check(function: Callable[[], None]) -> Callable[[], None]:
    CHECKS[function.__name__] = function
    return function


@dataclass
class Cell:
    """What has come of a cell."""

    out: str = ""
    err: str = ""
    value: str = ""
    error: str = ""  # the class of the exception
    trace: str = ""
    shown: list[str] = field(default_factory=list)  # what was displayed, and changed

    def take(self, message: dict[str, Any]) -> None:
        kind, content = message["msg_type"], message["content"]
        if kind == "stream" and content["name"] == "stdout":
            self.out += content["text"]
        elif kind == "stream":
            self.err += content["text"]
        elif kind == "execute_result":
            self.value = content["data"]["text/plain"]
        elif kind in ("display_data", "update_display_data"):
            self.shown.append(content["data"]["text/plain"])
        elif kind == "error":
            self.error = content["ename"]
            self.trace = re.sub(r"\033\[[\d;]*m", "", "\n".join(content["traceback"]))


class Notebook:
    """A kernel, and what a person does with it."""

    def __init__(self) -> None:
        self.manager = KernelManager()
        self.manager.start_kernel()
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)
        assert not self("%load_ext shanty").error

    def __call__(self, code: str, when: Callable[[Cell], bool] = lambda _: False) -> Cell:
        """Run a cell to its end; it is interrupted once `when` is true of what has come of it."""
        cell, interrupted = Cell(), False

        def hook(message: dict[str, Any]) -> None:
            nonlocal interrupted
            cell.take(message)
            if not interrupted and when(cell):
                interrupted = True
                self.manager.interrupt_kernel()

        self.client.execute_interactive(
            code, output_hook=hook, timeout=PATIENCE, store_history=True
        )
        return cell

    def ranks(self, code: str, line: str = "", **more: Any) -> Cell:
        return self(f"%%ranks {line}\n{code}", **more)

    def begin(self, code: str) -> None:
        """Start a cell, and come back when it is at work."""
        self.client.execute(code)
        while True:
            message = self.client.get_iopub_msg(timeout=PATIENCE)
            if message["msg_type"] == "stream" and "at work" in message["content"]["text"]:
                return

    def end(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()
        self.manager.cleanup_resources()


@contextmanager
def notebook(options: str = "-n 2") -> Iterator[Notebook]:
    it = Notebook()
    try:
        if options:
            cell = it.ranks("import shanty, time", f"{options} {ON}")
            assert not cell.error, cell
        yield it
    finally:
        it.end()
    wait_for(lambda: not alive(), "processes are left", 15)


def alive() -> list[str]:
    """The command lines of what belongs to the runs of this home, here and on virtual hosts."""
    ids = [run.name.encode() for run in runs()]
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        if any(b"SHANTY_RUN_ID=" + each in environ or each in words for each in ids):
            found.append(words.replace(b"\0", b" ").decode())
    return found


def wait_for(condition: Callable[[], object], what: str, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: {alive()}"
        time.sleep(0.02)


def runs() -> list[Path]:
    return sorted((Path(os.environ["SHANTY_HOME"]) / "runs").glob("*"))


def state(run: Path) -> str:
    found: dict[str, str] = json.loads((run / "status.json").read_text())
    return found["state"]


# --------------------------------------------------------------------------------- checks


def _not_for_ranks(it: Notebook) -> None:
    """Cells that IPython would take: with `await` they run; those for itself alone are refused."""
    cell = it.ranks(
        "import asyncio\nasync def later(n):\n    await asyncio.sleep(0)\n    return n + 1\n"
        "async with asyncio.Lock():\n    y = await later(x)\n[await later(i) for i in (x, y)]"
    )
    assert (cell.value, cell.error) == ("[42, 43]", ""), cell
    cell = it.ranks("await later('x')")
    assert cell.error == "TypeError", cell
    assert "base_events" not in cell.trace, cell  # the frames of the loop
    cell = it.ranks(
        "print('at work', flush=True)\nawait asyncio.sleep(600)",
        when=lambda cell: cell.out.count("at work") == 2,
    )
    assert cell.error == "KeyboardInterrupt", cell
    assert it.ranks("await later(5)").value == "6"  # the loop is as before
    assert it.ranks("asyncio.run(later(6))").value == "7"
    assert it.ranks('text = """\n%x\n!y"""\nlen(text)').value == "6"
    assert it.ranks(">>> x + 1").value == "42"  # pasted, as IPython takes it
    cell = it("%%time\n%%ranks\nx")
    assert cell.value == "41", cell
    assert "Wall time" in cell.out, cell
    for line, fix in (
        ("!ls", "subprocess.run"),
        ("files = !ls", "subprocess.run"),
        ("%cd /", "a cell without %%ranks"),
        ("x?", "a cell without %%ranks"),
        ("%%time", "%%time above %%ranks"),
    ):
        cell = it.ranks(f"x\n{line}")
        assert cell.error == "UsageError", cell
        assert f"line 2 of the cell is not Python: {line}" in cell.trace, cell
        assert fix in cell.trace, cell
        assert "Traceback" not in cell.trace, cell
    for asks in ("input('name? ')", "import getpass\ngetpass.getpass()", "breakpoint()"):
        cell = it.ranks(asks)
        assert cell.error == "EOFError", cell
        assert "%ranks push" in cell.trace, cell
        assert (cell.out, cell.err) == ("", ""), cell


@check
def basics() -> None:
    with notebook() as it:
        cell = it.ranks(
            "x = shanty.rank() + 40\nprint('I am', shanty.rank(), 'of', shanty.size())\nx"
        )
        assert sorted(cell.out.split("\n")) == ["", "[0] I am 0 of 2", "[1] I am 1 of 2"], cell
        assert (cell.value, cell.err, cell.error) == ("40", "", ""), cell
        assert it.ranks("x += 1; x").value == "41"  # each has kept its own
        assert it.ranks("from mpi4py import MPI\nMPI.COMM_WORLD.allreduce(x)").value == "83"
        assert it.ranks("x;").value == ""

        cell = it.ranks("def boom():\n    raise LookupError(x)\nif shanty.rank():\n    boom()")
        assert cell.error == "LookupError", cell
        assert "rank 1 on " in cell.trace, cell
        assert "raise LookupError(x)" in cell.trace, cell
        assert "shanty/" not in cell.trace, cell
        assert it.ranks("x").value == "41"  # the ranks are as before
        assert it.ranks("x = = 1").error == "SyntaxError"
        _not_for_ranks(it)
        cell = it.ranks("import os\nif not os.fork():\n    raise OSError('a child')\nos.wait()\nx")
        assert (cell.value, cell.error) == ("41", ""), cell
        assert "OSError: a child" in cell.err, cell
        assert (
            it(
                "try:\n    get_ipython().run_cell_magic('ranks', '', 'boom()')\n"
                "except LookupError as error:\n    print('caught', error)"
            ).out
            == "caught 41\n"
        )

        it("def square(n):\n    return n * factor\nfactor = 3")
        assert not it("%ranks push square").error
        assert it.ranks("square(x - 40)").value == "3"
        assert not it.ranks(
            "class Point:\n    def __repr__(self): return 'a point'\np = Point()"
        ).error
        assert it("%ranks pull p\np").value == "a point"
        assert it("%ranks pull nothing").error == "NameError"
        assert it.ranks("import threading\nthreading.Lock()").value.startswith("<unlocked")
        assert (
            "lock cannot be sent"
            in it("import threading\nlock = threading.Lock()\n%ranks push lock").trace
        )

        cell = it.ranks(
            "for i in shanty.progress(range(5), label='steps'):\n    time.sleep(0.3)", ""
        )
        assert cell.shown, cell
        assert cell.shown[-1].startswith("steps 5/5"), cell

        cell = it.ranks(
            "try:\n    print('at work', flush=True)\n    time.sleep(600)\n"
            "finally:\n    print('out')",
            when=lambda cell: cell.out.count("at work") == 2,
        )
        assert cell.error == "KeyboardInterrupt", cell
        assert sorted(cell.out.split("\n")[-3:]) == ["", "[0] out", "[1] out"], cell
        assert it.ranks("x").value == "41"
        assert "idle" in it("%ranks status").out
        assert it.ranks("x", "-n 3").error == "UsageError"
        assert it.ranks("x", "--nonsense").error == "UsageError"
        assert "known are" in it("%ranks nonsense").trace
        assert "has ended" in it("%ranks stop").out
        assert state(runs()[-1]) == "succeeded"
        assert it.ranks("'x' in globals()", "").value == "False"  # new ones, with the same options
        assert not it("%ranks restart").error
        assert len(runs()) == 3
        assert it.ranks("b'x' * (65 << 20)").value.startswith("b'xxx")  # too large to be sent
        assert not it("%unload_ext shanty").error
        assert state(runs()[-1]) == "succeeded"


@check
def interrupts() -> None:
    """Again and again, at any time: nothing is lost, and no rank is left behind."""
    with notebook() as it:
        for n in range(10):
            cell = it.ranks(
                "for i in range(10**9):\n    print('at work', i)\n    time.sleep(0.001)",
                when=lambda cell, n=n: len(cell.out) > 1000 * n,
            )
            assert cell.error == "KeyboardInterrupt", cell
            cell = it.ranks(f"{n}")
            assert cell.value == f"{n}", cell


@check
def stuck() -> None:
    """A rank in a blocking call of MPI is named, and new ranks are had."""
    with notebook() as it:
        cell = it.ranks(
            "from mpi4py import MPI\nprint('at work', flush=True)\n"
            "if shanty.rank() == 1:\n    MPI.COMM_WORLD.recv(source=0, tag=7)\n"
            "else:\n    time.sleep(600)",
            when=lambda cell: cell.out.count("at work") == 2,
        )
        assert cell.error == "KeyboardInterrupt", cell
        assert cell.trace.startswith("rank 0 on "), cell
        assert "cells.py" not in cell.trace + cell.err, cell
        assert "rank 1 cannot be interrupted" in cell.err, cell
        assert "%ranks restart" in cell.err, cell
        assert "MPI_" in cell.err, cell
        assert "cell 2" in it("%ranks status").out
        assert "still at the cell before" in it.ranks("1").trace
        assert not it("%ranks restart").error
        assert it.ranks("import shanty\nshanty.size()").value == "2"


@check
def broken() -> None:
    """A rank fails while the other waits for it in MPI: that is told, and does not hang."""
    bound = 15
    with notebook(f"-n 2 --stall-after {bound}") as it:
        began = time.monotonic()
        cell = it.ranks(
            "from mpi4py import MPI\nif shanty.rank() == 1:\n    raise LookupError('alone')\n"
            "MPI.COMM_WORLD.Barrier()"
        )
        assert cell.error == "LookupError", cell
        assert "rank 0 waited for it in MPI" in cell.trace, cell
        assert time.monotonic() - began < bound  # about the half of it
        cell = it.ranks("import shanty\nshanty.size()")
        assert cell.value == "2", cell
        cell = it.ranks(
            "import os, signal\nif shanty.rank():\n    os.kill(os.getpid(), signal.SIGSEGV)"
        )
        assert cell.error == "RunError", cell
        assert "SIGSEGV" in cell.trace, cell
        assert it.ranks("1 + 1").value == "2"


@check
def refused() -> None:
    """What cannot be is said before anything is started."""
    with notebook("") as it:
        assert it("%ranks").out.startswith("no ranks")
        for options, what in (
            ("-n 2 --image x", "containers"),
            ("-n 2 --debug 0", "--debug"),
            ("-n 2 --retries 2", "--retries"),
            ("-n two", "two"),
            ("-e 'A=1", "quotation"),
            ("-n 2 extra", "extra"),
            ("--on slurm", "hosts reached by ssh"),
        ):
            cell = it.ranks("1", options)
            assert cell.error.endswith("Error"), cell
            assert what in cell.trace, cell
            assert "Traceback" not in cell.trace, cell
        assert not runs()


@check
def idle() -> None:
    """Ranks that wait use no CPU to speak of, and are no stall."""
    with notebook("-n 2 --stall-after 1") as it:
        pids = json.loads(
            it.ranks(
                "import os\nfrom mpi4py import MPI\nMPI.COMM_WORLD.allgather(os.getpid())"
            ).value
        )

        def used() -> float:
            ticks = 0
            for pid in pids:
                words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(words[11]) + int(words[12])
            return ticks / os.sysconf("SC_CLK_TCK")

        before, began = used(), time.monotonic()
        wait_for(lambda: time.monotonic() > began + 8, "")
        share = (used() - before) / (time.monotonic() - began)
        print(f"idle ranks use {share * 100:.1f} % of a core", file=sys.stderr)
        assert share < 0.05
        assert not (runs()[-1] / "stalls.jsonl").exists()
        assert json.loads((runs()[-1] / "status.json").read_text())["stalled"] is None


@check
def killed() -> None:
    """The kernel dies by SIGKILL, while its ranks wait, are at work, and cannot go on."""
    stuck = "from mpi4py import MPI\nif shanty.rank():\n    MPI.COMM_WORLD.recv(source=0, tag=7)"
    busy = "while True: time.sleep(0.1)"
    for code in ("", *(f"print('at work', flush=True)\n{each}" for each in (busy, stuck))):
        it = Notebook()
        assert not it.ranks("import shanty, time", f"-n 2 {ON}").error
        if code:
            it.begin(f"%%ranks\n{code}")
        it.manager.signal_kernel(signal.SIGKILL)
        wait_for(lambda: not alive(), "after a kill")
        if "--on" not in ON:  # else nobody has looked at how it ended
            assert state(runs()[-1]) in ("succeeded", "failed")
        it.client.stop_channels()
        it.manager.cleanup_resources()


@check
def two() -> None:
    """Two notebooks at once, each with ranks of its own; an interrupt is for one of them."""
    with notebook() as one, notebook() as other:
        one.ranks("x = 1")
        other.ranks("x = 2")
        cell = one.ranks(
            "print('at work', flush=True)\ntime.sleep(600)",
            when=lambda cell: cell.out.count("at work") == 2,
        )
        assert cell.error == "KeyboardInterrupt", cell
        assert (one.ranks("x").value, other.ranks("x").value) == ("1", "2")
        one("%ranks stop")
        assert other.ranks("x + shanty.size()").value == "4"


@check
def tasks() -> None:
    """A task of the notebook: what its function uses travels, its output is the cell's."""
    with notebook("") as it:
        it("import shanty\nfactor = 3\ndef scaled(n):\n    return n * factor")
        it(
            "@shanty.task(ranks=2)\ndef work(n):\n    print('scaled', scaled(n))\n"
            "    if n < 0:\n        raise LookupError(n)\n    return scaled(n)"
        )
        cell = it("work(14)")
        assert cell.value == "42", cell
        assert sorted(cell.out.split("\n")) == ["", "[0] scaled 42", "[1] scaled 42"], cell
        assert it("work(-1)").error == "LookupError"
        cell = it(
            "@shanty.task(ranks=2)\ndef rest():\n    import time\n"
            "    print('at work', flush=True)\n    time.sleep(600)\nrest()",
            when=lambda cell: cell.out.count("at work") == 2,
        )
        assert cell.error == "KeyboardInterrupt", cell
        wait_for(lambda: state(runs()[-1]) == "stopped", "the run goes on")


@check
def hosts() -> None:
    """Ranks on other hosts: cells, values, errors, interrupts."""
    with notebook() as it:
        cell = it.ranks("import socket\nx = shanty.rank()\nprint(socket.gethostname())\nx + 41")
        assert cell.value == "41", cell
        assert len({line.split()[-1] for line in cell.out.splitlines()}) == 2, cell
        it("table = list(range(100_000))")
        assert not it("%ranks push table").error
        assert it.ranks("sum(table) + x").value == "4999950000"
        assert it("%ranks pull table\nlen(table)").value == "100000"
        cell = it.ranks("if x:\n    raise LookupError(x)")
        assert (cell.error, "rank 1 on " in cell.trace) == ("LookupError", True), cell
        cell = it.ranks(
            "print('at work', flush=True)\ntime.sleep(600)",
            when=lambda cell: cell.out.count("at work") == 2,
        )
        assert cell.error == "KeyboardInterrupt", cell
        assert it.ranks("x").value == "0"
        assert "has ended" in it("%ranks stop").out
    killed()


for name in sys.argv[1:]:
    CHECKS[name]()
    print("ok", name, flush=True)
