"""What shanty keeps on a host is damaged: noticed, said, and sent again by itself."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import lab_in
from site_runs import Site

from gadgets import environment, install, wheel
from shanty.runtime.rundir import read_json

pytestmark = [pytest.mark.mpi, pytest.mark.slow]

RUN = ("run", "--on", "lab", "--ppn", "1", "-n", "3")
HELLO = """
from mpi4py import MPI
print("sum", MPI.COMM_WORLD.allreduce(1), flush=True)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Runs on hosts that have all they need; each test leaves them so."""
    folder = tmp_path_factory.mktemp("store")
    with lab_in(folder, 3) as lab:
        here = Site(lab, folder / "work")
        here.write("hello.py", HELLO)
        works(here)
        yield here


def works(site: Site, *words: str) -> str:
    """See that a run works; what it says beside the output."""
    done = site(*RUN, *(words or ("hello.py",)), timeout=200)
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


def test_files_of_the_mpi(site: Site) -> None:
    for name in ("bin/prted", "lib/libmpi.so.40"):
        stored(site, f"mpi/*/{name}", "lab1").unlink()
        stored(site, f"mpi/*/{name}", "lab2").write_bytes(b"")
    said = works(site)
    for host in ("lab1", "lab2"):
        found = re.search(rf"{host}: Open MPI [\d. ]+ had been damaged there: \d+ files \(", said)
        assert found, said
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


def test_shanty_s_own_code(site: Site) -> None:
    """Half of it is missing, one file is cut short, bits of one are flipped."""
    one, two, three = (stored(site, "bundle/*/shanty/runtime", host) for host in site.lab.hosts)
    for path in list(one.rglob("*.py"))[::2]:
        path.unlink()
    cut = two / "node/node_agent.py"
    cut.write_bytes(cut.read_bytes()[:1000])
    flip(three / "rpc/server.py")
    said = works(site)
    for host in site.lab.hosts:
        assert f"{host}: shanty's own code had been damaged there; it was sent again (" in said
    assert "Traceback" not in said
    assert "damaged" not in works(site)


def test_a_package_of_an_environment(site: Site, tmp_path: Path) -> None:
    python = environment(tmp_path / "env")
    install(python, wheel(tmp_path / "gadgets", "1.0"))
    site.write("gadgets.py", f"import gadget\n{HELLO}")
    words = ("--python", str(python), "--packages", "sync", "gadgets.py")
    works(site, *words)
    stored(site, "env/*/lib/python3*/site-packages/gadget.py").unlink()
    done = site(*RUN, *words)
    assert done.returncode != 0
    failure = (read_json(site.last.status) or {})["failure"]
    assert "ModuleNotFoundError: No module named 'gadget'" in failure["why"]
    assert re.search(r"host lab2: damaged: 1 file \(lib/\S+/gadget.py\) of ", failure["why"])
    works(site, *words)
