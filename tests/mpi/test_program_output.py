"""What programs other than Python scripts print: at once, to the last line, and byte for byte."""

from __future__ import annotations

import random
import shutil

import pytest

from runs import LONG, wait_for

# With -I no variable of shanty's makes Python write lines at once.
LAST_WORDS = """
import os, signal, sys, time
print("terminal", sys.stdout.isatty(), sys.stderr.isatty(), os.get_terminal_size(1).columns)
try:
    open("/dev/tty")
except OSError:
    print("none controls")
print("loss is nan")
while not os.path.exists("gate"):
    time.sleep(0.02)
print("the last line")
sys.stderr.flush()
os.kill(os.getpid(), signal.SIGSEGV)
"""
# Text between random bytes, with returns: in parts, since a begun line is shown after 0.1 s.
DATA = """
import os, select, sys
data = open("data", "rb").read()
for start in range(0, len(data), 100_000):
    part = memoryview(data)[start : start + 100_000]
    while part:
        part = part[os.write(1, part) :]
    start == 0 and select.select([], [], [], 0.3)
"""


def test_lines_are_seen_at_once_and_not_lost_in_a_crash(shanty, flavour):
    shell = f"exec python -I {shanty.script(LAST_WORDS)}"
    process = shanty.start("run", "--mpi", flavour, "-n", 2, "bash", "-c", shell)

    def seen() -> bool:
        logs = list(shanty.last.logs.glob("rank-*.log"))
        return len(logs) == 2 and all("loss is nan" in log.read_text() for log in logs)

    wait_for(lambda: (shanty.home / "runs").exists() and seen())
    (shanty.folder / "gate").touch()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 139, err
    for rank in 0, 1:
        assert f"[{rank}] terminal True False 80\n".encode() in out
        assert f"[{rank}] none controls\n".encode() in out
    failed = shanty.status()["failure"]["rank"]
    assert f"[{failed}] the last line\n".encode() in out


@pytest.mark.parametrize("option", [(), ("--no-tty",)] if LONG else [()])
def test_data_arrives_byte_for_byte(shanty, option):
    source = random.Random(3)
    data = b"\rtext\r\n\x04\x03\x1a" + source.randbytes(3_000_000) + b"\rend"
    (shanty.folder / "data").write_bytes(data)
    shell = f"exec python -I {shanty.script(DATA)}"
    words = ["run", "-q", *option, "-n", 1, "bash", "-c", shell]
    process = shanty.start(*words, env={"PYTHONWARNINGS": "error", "PYTHONDEVMODE": "1"})
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out == data, err) == (0, True, b"")  # nor a ResourceWarning
    done = shanty("run", "-q", "--no-tty", "-n", 1, "sh", "-c", "test -t 1 || echo pipe")
    assert done.stdout == "pipe\n"


@pytest.mark.skipif(shutil.which("perl") is None, reason="there is no perl")
def test_a_program_that_is_not_python_loses_nothing_at_its_end(shanty):
    code = 'print "line $_\\n" for 1..50000; print "last"; kill 9, $$'
    done = shanty("run", "-q", "-n", 1, "perl", "-e", code)
    assert done.returncode == 137
    assert done.stdout.splitlines()[:2] == ["line 1", "line 2"]
    assert done.stdout.splitlines()[-1].startswith("line 50000")
