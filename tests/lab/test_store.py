"""What shanty keeps on a host is damaged: noticed, said, and put there anew without a hand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import LabHosts, lab_in
from site_runs import Site
from test_prepare import in_environment, uv, wheel

from shanty.runtime.rundir import read_json

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

RUN = ("run", "--on", "lab", "--ppn", "1", "-n", "3")
HELLO = """
from mpi4py import MPI
print("sum", MPI.COMM_WORLD.allreduce(1), flush=True)
"""


@pytest.fixture(scope="module")
def store_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHosts]:
    with lab_in(tmp_path_factory.mktemp("store"), 3) as found:
        yield found


@pytest.fixture
def site(store_lab: LabHosts, tmp_path: Path) -> Site:
    here = Site(store_lab, tmp_path / "work")
    here.write("hello.py", HELLO)
    works(here)
    return here


def works(site: Site, *words: str) -> str:
    """See that a run works; what it says beside the output."""
    done = site(*RUN, *words, "hello.py", timeout=200)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("sum 3") == 3
    return done.stderr


def stored(site: Site, pattern: str, host: str = "lab2") -> Path:
    """A file of the store on a host."""
    return next((site.lab.home(host) / ".shanty/store").glob(pattern))


def flip(path: Path) -> None:
    """Change bits of a file, and neither its size nor its time."""
    status = path.stat()
    content = bytearray(path.read_bytes())
    for place in range(0, len(content), max(1, len(content) // 50)):
        content[place] ^= 0x5A
    path.write_bytes(content)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("how", ["gone", "emptied"])
@pytest.mark.parametrize("host", ["lab1", "lab2"])
def test_a_file_of_the_mpi(site: Site, host: str, how: str) -> None:
    for name in ("bin/prted", "lib/libmpi.so.40"):
        path = stored(site, f"mpi/*/{name}", host)
        if how == "gone":
            path.unlink()
        else:
            path.write_bytes(b"")
    said = works(site)
    assert re.search(rf"{host}: Open MPI [\d. ]+ had been damaged there: \d+ files \(", said), said
    assert "damaged" not in works(site)


@pytest.mark.parametrize("name", ["lib/libmpi.so.40", "bin/prted"])
def test_flipped_bits_are_found_when_the_run_fails(site: Site, name: str) -> None:
    flip(stored(site, f"mpi/*/{name}"))
    done = site(*RUN, "hello.py")
    assert done.returncode != 0
    failure = (read_json(site.last.status) or {})["failure"]
    assert f"host lab2: damaged: 1 file ({name}) of " in failure["why"], failure
    assert "run it again" in failure["fix"]
    works(site)


def test_doctor_finds_flipped_bits_and_mends_them(site: Site) -> None:
    flip(stored(site, "mpi/*/bin/prted"))
    report = json.loads(site("doctor", "lab", "--json").stdout)
    (found,) = [one for one in report["findings"] if one["level"] != "note"]
    assert (found["code"], found["host"]) == ("store-damaged", "lab2")
    assert "bin/prted" in found["evidence"]
    report = json.loads(site("doctor", "lab", "--json", "--fix", "--yes").stdout)
    assert [one for one in report["findings"] if one["level"] != "note"] == []
    works(site)


@pytest.mark.parametrize("how", ["half of it gone", "cut short", "flipped"])
def test_shanty_s_own_code(site: Site, how: str) -> None:
    code = stored(site, "bundle/*/shanty/runtime")
    if how == "half of it gone":
        for path in list(code.rglob("*.py"))[::2]:
            path.unlink()
    elif how == "cut short":
        path = code / "agent/node_agent.py"
        path.write_bytes(path.read_bytes()[:1000])
    else:
        flip(code / "rpc/server.py")
    said = works(site)
    assert "lab2: shanty's own code had been damaged there; it was sent again (" in said
    assert "Traceback" not in said
    assert "damaged" not in works(site)


def test_a_package_of_an_environment(site: Site, tmp_path: Path) -> None:
    base = os.path.realpath(sys.executable)
    subprocess.run([uv(), "venv", "--quiet", "--python", base, tmp_path / "env"], check=True)
    python = str(tmp_path / "env/bin/python")
    in_environment(Path(python), wheel(tmp_path / "gadgets", "1.0"))
    site.write("hello.py", f"import gadget\n{HELLO}")
    words = ("--python", python, "--env", "sync")
    works(site, *words)
    stored(site, "env/*/lib/python3*/site-packages/gadget.py").unlink()
    done = site(*RUN, *words, "hello.py")
    assert done.returncode != 0
    failure = (read_json(site.last.status) or {})["failure"]
    assert "ModuleNotFoundError: No module named 'gadget'" in failure["why"]
    assert re.search(r"host lab2: damaged: 1 file \(lib/\S+/gadget.py\) of ", failure["why"])
    works(site, *words)
