"""The flavours and the translations, tried on the real launchers.

Several hosts are this one under several names: a program called `ssh`, first on PATH, starts
what it is given under another host name.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

import pytest

from installations import installations
from shanty.runtime.mpi.flavours import FLAVOURS, identify_library
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.mpi.processes import LOCAL_RANK, LOCAL_SIZE, RANK, SIZE
from shanty.runtime.mpi.translate import translate

pytestmark = pytest.mark.mpi

TABLE = Path(__file__).parent.parent / "unit/runtime/mpi/translate_table.toml"
LINES = [line for line in tomllib.loads(TABLE.read_text())["line"] if "ranks" in line]
LOCAL = (HostSlots("localhost", 4),)
LAB = (HostSlots("hz", 0), HostSlots("ha", 1), HostSlots("hb", 3))

SAY = """#!/bin/sh
echo "rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK} host=$(uname -n);"
"""
SSH = """#!/bin/sh
while [ $# -gt 0 ]; do
  case "$1" in -o | -p | -l | -i | -F) shift 2 ;; -*) shift ;; *) break ;; esac
done
host=$1; shift
if [ "$1" = -x ]; then shift; fi
exec {unshare} sh -c 'hostname "$1"; exec sh -c "$2"' sh "$host" "$*"
"""
# What an MPI under which these tests run, or a user's settings, would change.
OTHERS = ("OMPI_", "PRTE_", "PMIX_", "PMI_", "HYDRA_", "I_MPI_", "MPIR_", "MPI4PY_", "SLURM_")


@pytest.fixture(params=list(FLAVOURS))
def mpi(request: pytest.FixtureRequest) -> Installation:
    found = installations().get(request.param)
    if found is None:
        pytest.skip(f"{request.param} is not installed in $SHANTY_TEST_MPI")
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for one run, with a program that tells its rank and host."""
    say = tmp_path / "say"
    say.write_text(SAY)
    say.chmod(0o755)
    return tmp_path


@pytest.fixture
def several_hosts(folder: Path) -> Path:
    """A folder that has a `ssh` which gives each host a name of its own on this machine."""
    namespaces = ["-u"] if os.geteuid() == 0 else ["-U", "--map-current-user", "--keep-caps", "-u"]
    unshare = ["unshare", *namespaces]
    try:
        trial = subprocess.run([*unshare, "hostname", "trial"], check=False, capture_output=True)
    except OSError:
        pytest.skip("this machine has no unshare")
    if trial.returncode != 0:
        pytest.skip("this machine allows no host names of one's own")
    ssh = folder / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH.replace("{unshare}", shlex.join(unshare)))
    ssh.chmod(0o755)
    return folder


def run_layout(folder: Path, hosts: Sequence[HostSlots] = LOCAL, **changes: object) -> Layout:
    values: dict[str, object] = {
        "ranks": None, "ranks_per_host": None, "cpus_per_rank": None, "oversubscribe": False,
        "cores": 2, "hostfile": str(folder / "hostfile"),
    }  # fmt: skip
    return Layout(tuple(hosts), **{**values, **changes})


def environment(mpi: Installation, layout: Layout, folder: Path) -> dict[str, str]:
    """The environment of a run, with its host file written."""
    flavour = FLAVOURS[mpi.flavour]
    if layout.hostfile:
        Path(layout.hostfile).write_text(flavour.hostfile(layout.hosts))
    own = {key: value for key, value in os.environ.items() if not key.startswith(OTHERS)}
    own["PATH"] = f"{folder / 'bin'}:{own['PATH']}"
    own.update(SHANTY_TEST_A="1", SHANTY_TEST_B="2")
    return {**own, **flavour.environment(mpi, layout, own, str(folder / "scratch"))}


def output(argv: Sequence[str], env: Mapping[str, str], folder: Path) -> str:
    """What a launcher prints; fails when it does not end well, or not at all."""
    done = subprocess.run(
        argv, check=False, env=env, cwd=folder, timeout=60, text=True,
        restore_signals=False,  # as in a run: Hydra may write to a proxy that has just gone
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 0, f"{shlex.join(argv)}\n{done.stdout}"
    return done.stdout


def by_line(
    line: Sequence[str], mpi: Installation, layout: Layout, folder: Path, prefix: Sequence[str] = ()
) -> str:
    """What the launcher prints for a line that was translated for it."""
    env = environment(mpi, layout, folder)
    result = translate(line, FLAVOURS[mpi.flavour], layout, prefix=prefix, given_environment=env)
    for path, text in result.files:
        Path(path).write_text(text)
    return output([mpi.launcher, *result.argv], {**env, **result.environment}, folder)


def by_command(
    program: Sequence[str], mpi: Installation, layout: Layout, folder: Path, **more: str
) -> str:
    """What the launcher prints for the run's own command, with `more` in its environment."""
    argv = FLAVOURS[mpi.flavour].command(mpi, layout, program)
    return output(argv, {**environment(mpi, layout, folder), **more}, folder)


def ranks_in(text: str) -> list[int]:
    return sorted(int(rank) for rank in re.findall(r"rank=(\d+) host=[^;]*;", text))


def places_in(text: str) -> dict[int, str]:
    return {int(rank): host for rank, host in re.findall(r"rank=(\d+) host=([^;]*);", text)}


# ------------------------------------------------------------------ translated lines


@pytest.mark.parametrize("entry", LINES, ids=lambda entry: entry["given"])
def test_a_translated_line_starts_its_ranks(
    entry: dict[str, str], mpi: Installation, folder: Path
) -> None:
    keys = (mpi.flavour, FLAVOURS[mpi.flavour].family, "all")
    wanted = next(entry[key] for key in keys if key in entry)
    if wanted.startswith("! "):
        pytest.skip("refused for this flavour")
    for name, text in [("openmpi", "localhost slots=2"), ("hydra", "localhost:2"),
                       ("plain", "localhost")]:  # fmt: skip
        (folder / f"{name}-hosts").write_text(text + "\n")
    line = [word.replace("/run", str(folder)) for word in shlex.split(entry["given"])]
    found = by_line(line, mpi, run_layout(folder), folder)
    assert ranks_in(found) == list(range(int(entry["ranks"])))


def test_a_line_under_a_prefix(mpi: Installation, folder: Path) -> None:
    prefix = ["sh", "-c", 'echo "before $*;"; exec "$@"', "sh"]
    line = ["-np", "1", "--tag-output", "./say", "a", ":", "-np", "1", "./say", "b"]
    found = by_line(line, mpi, run_layout(folder), folder, prefix)
    assert sorted(re.findall(r"^before (.*);", found, re.MULTILINE)) == ["./say a", "./say b"]
    assert ranks_in(found) == [0, 1]


def test_variables_arrive_as_they_were_written(mpi: Installation, folder: Path) -> None:
    value = "a,b;c d=e'f\"g"
    line = ["-np", "1", "-x", f"AN_X={value}", "-genv", "A_GENV", value,
            "sh", "-c", 'echo "<$AN_X> <$A_GENV>"']  # fmt: skip
    assert f"<{value}> <{value}>" in by_line(line, mpi, run_layout(folder), folder)


def test_a_binding_binds(mpi: Installation, folder: Path) -> None:
    cores = os.sched_getaffinity(0)
    if len(cores) < 2:
        pytest.skip("one core only")
    program = [sys.executable, "-c", "import os; print('cores', len(os.sched_getaffinity(0)))"]
    for flags, number in [("--bind-to none", len(cores)), ("--map-by slot:PE=1", 1),
                          ("-bind-to core:2", 2)]:  # fmt: skip
        line = ["-np", "1", *flags.split(), *program]
        found = by_line(line, mpi, run_layout(folder), folder)
        assert f"cores {number}\n" in found, flags


# -------------------------------------------------------------- commands, environments


def test_the_command_starts_its_ranks(mpi: Installation, folder: Path) -> None:
    for changes in (
        {"ranks": 3},
        {"ranks": None},
        {"ranks": 6, "oversubscribe": True},
        {"ranks": 1, "cpus_per_rank": 1},
        {"ranks": 2, "ranks_per_host": 2},
    ):
        layout = run_layout(folder, **changes)
        found = by_command(["./say"], mpi, layout, folder)
        assert ranks_in(found) == list(range(layout.ranks or 4)), changes


def test_the_rank_variables_are_there(mpi: Installation, folder: Path) -> None:
    places = (RANK, SIZE, LOCAL_RANK, LOCAL_SIZE)
    program = "import os, sys; from shanty.runtime.mpi.processes import number; "
    numbers = f"' '.join(str(number(os.environ, each)) for each in {places})"
    program += f"sys.stdout.write({numbers} + '.\\n')"  # one write: launchers mix lines of several
    layout = run_layout(folder, ranks=2)
    found = by_command([sys.executable, "-c", program], mpi, layout, folder)
    assert sorted(re.findall(r"[0-9 ]+\.", found)) == ["0 2 0 2.", "1 2 1 2."]


ALLREDUCE = """
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
if world.rank == 0:
    print("total", total, "of", world.size, "by", MPI.Get_library_version().splitlines()[0])
"""


def test_an_allreduce_under_the_environment(mpi: Installation, folder: Path) -> None:
    layout = run_layout(folder, ranks=3)
    found = by_command([sys.executable, "-c", ALLREDUCE], mpi, layout, folder)
    match = re.search(r"total 6 of 3 by (.*)", found)
    assert match is not None, found
    library = identify_library(match[1])
    assert library is not None
    assert library[0] == mpi.flavour


SPAWN = """
import sys
from mpi4py import MPI
parent = MPI.Comm.Get_parent()
if parent != MPI.COMM_NULL:
    parent.Barrier()
    parent.Disconnect()
else:
    child = MPI.COMM_WORLD.Spawn(sys.executable, [__file__], 1)
    child.Barrier()
    child.Disconnect()
    print("spawned")
"""


def test_ranks_can_be_spawned_under_the_environment(mpi: Installation, folder: Path) -> None:
    # With shared memory as Open MPI's only connection, 5 hangs here and 4 fails.
    (folder / "spawn.py").write_text(SPAWN)
    layout = run_layout(folder, ranks=1)
    if mpi.flavour == "intel":
        pytest.skip("Intel MPI spawns with I_MPI_SPAWN=on only")
    program = [sys.executable, str(folder / "spawn.py")]
    assert "spawned" in by_command(program, mpi, layout, folder)


def test_a_default_host_file_serves_the_users_own_launcher(mpi: Installation, folder: Path) -> None:
    env = environment(mpi, run_layout(folder), folder)
    assert ranks_in(output([mpi.launcher, "-n", "4", "./say"], env, folder)) == [0, 1, 2, 3]


def test_session_folders_are_below_scratch(mpi: Installation, folder: Path) -> None:
    if FLAVOURS[mpi.flavour].family != "openmpi":
        pytest.skip("Hydra has none")
    layout = run_layout(folder, ranks=1)
    names = by_command(["ls", str(folder / "scratch")], mpi, layout, folder).split()
    patterns = FLAVOURS[mpi.flavour].temporary_files
    assert names
    assert all(any(fnmatch(name, pattern) for pattern in patterns) for name in names)


SEGMENTS = """
import os, sys
from mpi4py import MPI
MPI.COMM_WORLD.Barrier()
if MPI.COMM_WORLD.rank == 0:
    print("files", *os.listdir(sys.argv[1]))
MPI.COMM_WORLD.Barrier()
"""


def test_segments_are_where_they_were_wished(mpi: Installation, folder: Path) -> None:
    flavour = FLAVOURS[mpi.flavour]
    place = folder / "segments"
    place.mkdir()
    if not flavour.segments(str(place)):
        pytest.skip("this flavour does not let its shared memory be placed")
    layout = run_layout(folder, ranks=2)
    program = [sys.executable, "-c", SEGMENTS, str(place)]
    found = by_command(program, mpi, layout, folder, **flavour.segments(str(place)))
    names = found.split("files ")[1].split()
    assert len(names) == 2
    assert all(any(fnmatch(n, p) for p in flavour.shared_memory_files) for n in names)


# ------------------------------------------------------------------------ several hosts


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"ranks": 4}, "ha hb hb hb"),
        ({"ranks": None}, "ha hb hb hb"),
        ({"ranks": 2, "ranks_per_host": 1}, "ha hb"),
    ],
)
def test_the_command_fills_the_hosts(
    changes: dict[str, object], wanted: str, mpi: Installation, several_hosts: Path
) -> None:
    layout = run_layout(several_hosts, LAB, **changes)
    found = by_command([str(several_hosts / "say")], mpi, layout, several_hosts)
    assert places_in(found) == dict(enumerate(wanted.split()))


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("-n 4", "ha hb hb hb"),
        ("", "ha hb hb hb"),
        ("--hostfile $HOSTFILE", "ha hb hb hb"),
        ("-n 2 -N 1", "ha hb"),
        ("--pernode", "ha hb"),
        ("-n 4 --map-by node --hostfile even", "ha hb ha hb"),
        ("-n 4 -ppn 1 -f even", "ha hb ha hb"),
        ("-n 4 -ppn 2 -hosts ha,hb", "ha ha hb hb"),
        ("-n 3 --host ha:1,hb:2", "ha hb hb"),
        ("-n 3 -hosts hb:2,ha:1", "hb hb ha"),
        ("-n 3 --hostfile uneven", "ha ha hb"),
        ("-n 3 -machinefile other", "ha ha hb"),
    ],
)
def test_a_translated_line_fills_the_hosts(
    line: str, wanted: str, mpi: Installation, several_hosts: Path
) -> None:
    (several_hosts / "even").write_text("ha slots=2\nhb slots=2\nhz slots=0\n")
    (several_hosts / "uneven").write_text("ha slots=2  # first\nhb slots=1\n")
    (several_hosts / "other").write_text("hz:0\nha:2\nhb:1\n")
    words = shlex.split(line.replace("$HOSTFILE", ""))
    words = [
        str(several_hosts / word) if word in ("even", "uneven", "other") else word for word in words
    ]
    if line.endswith("$HOSTFILE"):  # it was empty: only an option can come after it
        words += ["-bind-to", "none"]
    layout = run_layout(several_hosts, LAB)
    found = by_line([*words, str(several_hosts / "say")], mpi, layout, several_hosts)
    assert places_in(found) == dict(enumerate(wanted.split()))


def test_oversubscribed_ranks_do_not_all_end_on_the_first_host(
    mpi: Installation, several_hosts: Path
) -> None:
    # `:oversubscribe` alone makes Open MPI 5 do just that.
    hosts = (HostSlots("ha", 2), HostSlots("hb", 2))
    layout = run_layout(several_hosts, hosts, oversubscribe=True)
    for line in (["-n", "6"], ["-n", "6", "--oversubscribe"]):
        program = str(several_hosts / "say")
        places = places_in(by_line([*line, program], mpi, layout, several_hosts))
        assert sorted(places) == list(range(6))
        assert set(places.values()) == {"ha", "hb"}
