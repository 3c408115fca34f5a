"""What tasks have to do wherever their ranks are; SDK_OPTIONS says where, the words say which.

It is copied into a workspace, with `beside.py` next to it, and `far_away.py` in a folder that
hosts lack. Each check prints `ok NAME`.
"""

import asyncio
import concurrent.futures
import json
import os
import signal
import sys
import threading
import time
import traceback

import beside
import far_away
import numpy as np

import shanty

OPTIONS = json.loads(os.environ.get("SDK_OPTIONS", "{}"))
SCRATCH = os.environ["SDK_SCRATCH"]  # a folder on this machine
SEEN = set()


def task(**more):
    return shanty.task(**{"ranks": 2, **OPTIONS, **more})


def runs():
    """How many there have been so far; the oldest may be removed meanwhile."""
    SEEN.update(run.id for run in shanty.runs())
    return len(SEEN)


def raised(kind, call, *words):
    """What the call raises: of that class, with those words in its text."""
    try:
        value = call()
    except kind as error:
        for word in words:
            assert word in str(error), f"{word!r} is not in: {error}"
        return error
    raise AssertionError(f"it returned {value!r}")


def wait_for(condition, seconds=60):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "not in time"
        time.sleep(0.02)


class Point:
    def __init__(self, x):
        self.x = x

    @task()
    def moved(self, by):
        return Point(self.x + by)

    @classmethod
    def origin(cls):
        return cls(0)

    @task()
    @classmethod
    def made(cls, x):
        return cls(x)

    @staticmethod
    @task()
    def doubled(x):
        return 2 * x


class CodedError(Exception):
    """Its __init__ takes other arguments than Exception gets."""

    def __init__(self, code, what):
        super().__init__(f"{what} ({code})")
        self.code = code


def plain(x):
    return x + OFFSET


OFFSET = 40


# ------------------------------------------------------------------------------ what travels


def check_value():
    @task()
    def add(a, b=1):
        return a + b, shanty.rank(), shanty.size()

    assert add(2, b=3) == (5, 0, 2)
    assert add.submit(2).result(120) == (3, 0, 2)


def check_each():
    @task()
    def own():
        return shanty.rank(), {"none": None}

    assert shanty.each(own)() == [(0, {"none": None}), (1, {"none": None})]


def check_real_mpi():
    @task()
    def total(start):
        from mpi4py import MPI

        return MPI.COMM_WORLD.allreduce(start + MPI.COMM_WORLD.rank), MPI.COMM_WORLD.size

    assert total(10) == (21, 2)


def check_functions_and_classes_of_main():
    assert task()(plain)(2) == 42
    point = task()(lambda: Point(3))()
    assert type(point) is Point
    assert point.x == 3


def check_methods():
    assert Point(2).moved(3).x == 5
    assert task()(Point(2).moved.function)(1).x == 3
    assert task()(Point.origin)().x == 0
    assert Point.made(6).x == 6
    assert Point.doubled(4) == 8


def check_module_beside():
    assert task()(beside.plus_one)(1) == 2
    assert beside.as_task.with_options(**OPTIONS)(3) == 103
    assert type(task()(beside.thing)()) is beside.Thing


def check_module_that_hosts_lack():
    assert task()(far_away.answer)(2) == 44
    assert type(task()(far_away.thing)()) is far_away.Far
    assert task()(lambda: far_away.answer(0))() == 42


def check_arrays():
    values = np.arange(1e6).reshape(1000, 1000)
    found = task()(lambda data: (data * 2).T)(values)
    assert np.array_equal(found, (values * 2).T)


def check_output_is_shown():
    @task()
    def talk():
        print("hello from", shanty.rank())
        print("no end", shanty.rank(), end="")

    talk()  # the test looks for it


# -------------------------------------------------------------------------------- exceptions


def check_exception_of_main():
    @task()
    def fail():
        raise CodedError(7, "no data")

    error = raised(CodedError, fail, "no data (7)")
    assert (type(error), error.code) == (CodedError, 7)
    text = "".join(traceback.format_exception(error))
    assert 'raise CodedError(7, "no data")' in text, text
    assert "rank " in text, text
    assert "shanty/tasks" not in str(error.__cause__), error.__cause__


def check_exception_of_a_module():
    error = raised(beside.TroubleError, task()(beside.fails), "deep trouble")
    assert (error.args, error.where) == (("deep trouble",), "beside")
    error = raised(far_away.FarError, task()(far_away.fails), "far")
    assert type(error) is far_away.FarError


def check_first_of_several():
    @task()
    def fail():
        from mpi4py import MPI

        MPI.COMM_WORLD.barrier()
        if shanty.rank() == 0:
            time.sleep(0.1)  # the second by so much
            raise ValueError("the second")
        raise KeyError("the first")

    error = raised(KeyError, fail)
    assert "rank 1 on" in str(error.__cause__)

    @task()
    def waits():
        from mpi4py import MPI

        if MPI.COMM_WORLD.rank == 1:
            raise LookupError("rank 0 waits for me")
        MPI.COMM_WORLD.recv(source=1)

    raised(LookupError, waits, "rank 0 waits")


def check_system_exit():
    @task()
    def leave(code):
        sys.exit(code)

    assert raised(shanty.RunError, lambda: leave(3)).run.status.exit_code == 3
    raised(shanty.RunError, lambda: leave("no such data"), "no such data")
    assert leave(0) is None
    assert leave(None) is None


def check_crash():
    @task()
    def crash(number):
        if shanty.rank() == 1:
            os.kill(os.getpid(), number)
        time.sleep(60)

    error = raised(shanty.RunError, lambda: crash(signal.SIGSEGV), "SIGSEGV")
    assert (error.failure.rank, error.failure.signal) == (1, "SIGSEGV")
    error = raised(shanty.RunError, lambda: crash(signal.SIGKILL), "SIGKILL")
    assert (error.failure.rank, error.cause) == (1, "")


def check_children_of_a_rank():
    @task()
    def leaves_a_child(how):
        import atexit

        its_end, our_end = os.pipe()
        pid = os.fork()
        if pid:

            def let_it_end():  # once the rank's value is kept
                os.close(our_end)
                os.waitpid(pid, 0)

            atexit.register(let_it_end)
            return "the rank's"
        os.close(our_end)
        os.read(its_end, 1)
        if how == "raises":
            raise ValueError("the child's")
        if how == "leaves":
            sys.exit(0)
        return "the child's"

    for how in ("returns", "raises", "leaves"):
        assert leaves_a_child(how) == "the rank's", how


def check_no_value():
    @task()
    def gone():
        os._exit(0)

    raised(shanty.RunError, gone, "left no value")


def check_ignored_outputs():
    @task()
    def most():
        if shanty.rank() == 1:
            raise shanty.IgnoreOutputs("not mine")
        return "mine"

    assert most() == "mine"
    assert shanty.each(most)() == ["mine", None]


def check_what_cannot_be_pickled():
    lock = threading.Lock()

    @task()
    def uses():
        return lock

    before = runs()
    raised(TypeError, uses, "'lock', which", "uses()", "lock")
    raised(TypeError, lambda: task()(plain)(threading.Lock()), "argument 1 of plain()")
    raised(TypeError, lambda: task()(beside.plus_one)(x=[threading.Lock()]), "argument 'x'")
    assert runs() == before

    @task()
    def returns():
        return {"model": [1, threading.Lock()]}

    raised(TypeError, returns, "the value of", "returns()['model'][1]", "lock")


# ------------------------------------------------------------------------------------- ending


@task()
def endless():
    while True:
        time.sleep(0.05)


def running(future):
    wait_for(lambda: future.run.state.value in ("running", "failed", "lost"))
    assert future.run.state.value == "running", future.run.status
    return future.run


def check_stop():
    future = endless.submit()
    running(future).stop()
    raised(shanty.RunError, lambda: future.result(60), "was stopped")
    assert future.run.state.value == "stopped"
    assert not future.cancelled()


def check_cancel():
    future = endless.submit()
    run = running(future)
    assert not future.done()
    assert future.cancel()
    raised(concurrent.futures.CancelledError, lambda: future.result(60))
    assert (future.cancelled(), future.done(), future.cancel()) == (True, True, False)
    assert run.state.value == "stopped"


def check_cancel_at_once():
    future = endless.submit()
    assert future.cancel()
    raised(concurrent.futures.CancelledError, lambda: future.result(60))
    if future.run is not None:
        wait_for(lambda: future.run.done, 30)


def check_timeout():
    future = endless.submit()
    run = running(future)
    raised(TimeoutError, lambda: future.result(0.1))
    raised(TimeoutError, lambda: run.wait(0.1))
    assert run.state.value == "running"
    future.cancel()
    assert run.wait(60).state.value == "stopped"


def check_await():
    async def both():
        add = task(ranks=1)(lambda x: x + 1)
        return await asyncio.gather(add.submit(1), add.submit(2))

    assert asyncio.run(both()) == [2, 3]


def check_await_is_cancelled():
    async def work():
        future = endless.submit()
        wait = asyncio.ensure_future(future._wait())
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, running, future)
        wait.cancel()
        try:
            await wait
        except asyncio.CancelledError:
            return future
        raise AssertionError("not cancelled")

    future = asyncio.run(work())
    assert future.run.wait(60).state.value == "stopped"
    raised(concurrent.futures.CancelledError, lambda: future.result(60))


def check_run():
    @task()
    def work():
        print("a line")
        shanty.log(rank_squared=shanty.rank() ** 2)
        (shanty.artifacts() / f"file-{shanty.rank()}").write_text("saved")
        while True:
            time.sleep(0.05)

    future = work.submit()
    run = running(future)
    wait_for(lambda: len([line for line in run.logs() if line.text == "a line"]) == 2)
    assert {each["rank"] for each in run.stacks()} == {0, 1}
    wait_for(lambda: len(run.metrics()) == 2)
    future.cancel()
    run.wait(60)
    assert sorted(path.name for path in run.artifacts().iterdir()) == ["file-0", "file-1"]
    assert shanty.find(run.id).state.value == "stopped"


# -------------------------------------------------------------------------- again, and before


def check_a_bug_is_not_tried_again():
    @task(retries=3)
    def bug():
        raise ZeroDivisionError

    before = runs()
    raised(ZeroDivisionError, bug)
    assert runs() == before + 1


def check_memory():
    # What leads a run takes some 60 MiB itself in a pod, whose limit this is.
    @task(retries=2, memory="x2", memory_per_rank="128M")
    def load(least):
        from pathlib import Path

        if shanty.rank() > 0:
            return 0
        run = Path(os.environ["SHANTY_RUN_DIR"])  # the lead host has all of it
        given = json.loads((run / "job.json").read_text())["memory_per_rank"]
        if given < least:
            raise MemoryError(f"{given} is not enough")
        return given

    before = runs()
    assert load(384 << 20) == 512 << 20
    assert runs() == before + 3
    raised(MemoryError, lambda: load(1 << 40), "is not enough")
    assert runs() == before + 6
    raised(MemoryError, lambda: task(retries=2, memory_per_rank="128M")(load.function)(1 << 40))
    assert runs() == before + 7


def check_cache():
    note = "one"
    version = SCRATCH  # homes may be shared, and what others have kept is not ours

    @task(cache=version)
    def slow(x, y=2):
        return x, y, note

    before = runs()
    assert slow(1) == (1, 2, "one")
    assert slow(x=1, y=2) == (1, 2, "one")
    future = slow.submit(1)
    assert (future.result(), future.run) == ((1, 2, "one"), None)
    assert runs() == before + 1
    assert slow(2) == (2, 2, "one")  # another argument
    assert slow.with_options(cache=f"{version} 2")(2) == (2, 2, "one")  # another version
    assert shanty.each(slow)(2) == [(2, 2, "one")] * 2
    note = "two"  # another closure
    assert slow(2) == (2, 2, "two")
    assert runs() == before + 5

    @task(cache=version)
    def slow(x, y=2):
        return x + 0, y, note  # other code

    assert slow(2) == (2, 2, "two")
    assert runs() == before + 6


def check_cache_of_a_failure():
    @task(cache="1")
    def fail():
        raise OSError("not kept")

    before = runs()
    for _ in range(2):
        raised(OSError, fail, "not kept")
    assert runs() == before + 2


# -------------------------------------------------------------------------------------- files


def check_a_gigabyte():
    value = task()(lambda: bytes(1 << 30))()
    assert len(value) == 1 << 30


def check_folders():
    from pathlib import Path

    source = Path(SCRATCH, "data")
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "a.txt").write_text("content")
    (source / "empty").mkdir()
    (source / "large").write_bytes(os.urandom(20 << 20))
    single = Path(SCRATCH, "single.txt")
    single.write_text("one file")

    @task(cache=f"folders {SCRATCH}")
    def read(folder, file, none):
        from pathlib import Path

        out = shanty.artifacts() / f"made-{shanty.rank()}"
        out.mkdir()
        (out / "result.bin").write_bytes((folder / "large").read_bytes()[::-1])
        text = (folder / "deep" / "a.txt").read_text() + " " + Path(file).read_text()
        return text, shanty.Folder(out), [each.name for each in Path(none).iterdir()]

    before = runs()
    arguments = [shanty.Folder(each) for each in (source, single, source / "empty")]
    text, made, none = read(*arguments)
    assert (text, none) == ("content one file", [])
    assert (made / "result.bin").read_bytes()[::-1] == (source / "large").read_bytes()
    again = read(*arguments)[1]
    assert (again / "result.bin").read_bytes() == (made / "result.bin").read_bytes()
    assert runs() == before + 1
    single.write_text("other content")
    assert read(*arguments)[0] == "content other content"
    assert runs() == before + 2


# ---------------------------------------------------------------------------------------- map


def check_map():
    @task(ranks=1)
    def square(x, y):
        return x * y

    assert square.map([1, 2, 3, 4], [1, 2, 3, 4]) == [1, 4, 9, 16]
    assert square.map([], []) == []
    raised(ValueError, lambda: square.map([1], [1, 2]))


def check_map_with_an_exception():
    @task(ranks=1)
    def work(x):
        if x == 2:
            raise CodedError(x, "in the middle")
        return x

    before = runs()
    assert raised(CodedError, lambda: work.map(range(30), at_once=4), "in the middle").code == 2
    assert runs() < before + 30
    assert all(run.done for run in shanty.runs())


CHECKS = {name[6:]: each for name, each in globals().items() if name.startswith("check_")}

if __name__ == "__main__":
    for name in sys.argv[1:] or CHECKS:
        began = time.monotonic()
        try:
            CHECKS[name]()
        except BaseException:  # noqa: BLE001  whatever is wrong
            print("not ok", name, flush=True)
            traceback.print_exc()
        else:
            print("ok", name, f"{time.monotonic() - began:.1f} s", flush=True)
