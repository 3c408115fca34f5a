"""What each MPI's host file, command line and environment look like."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatch

import pytest

from shanty.runtime.errors import UsageError
from shanty.runtime.mpi.flavours import FLAVOURS, flavour, identify_library
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.layout import HostSlots, Layout

LOCAL = (HostSlots("localhost", 4),)
LAB = (HostSlots("h0", 0), HostSlots("h1", 1), HostSlots("h2", 3))


def installed(name: str) -> Installation:
    return Installation(name, "1.0", "/mpi", "/mpi/bin/mpirun", "/mpi/lib/libmpi.so", "shanty")


def layout(hosts: tuple[HostSlots, ...] = LOCAL, **changes: object) -> Layout:
    values: dict[str, object] = {
        "ranks": 4, "ranks_per_host": None, "cpus_per_rank": None, "oversubscribe": False,
        "cores": 16, "hostfile": "/run/hostfile",
    }  # fmt: skip
    return Layout(hosts, **{**values, **changes})


def environment(name: str, where: Layout, **given: str) -> dict[str, str]:
    return FLAVOURS[name].environment(installed(name), where, given, "/tmp/scratch")


# ------------------------------------------------------------------------------ names


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("openmpi5", "openmpi5"),
        ("openmpi", "openmpi5"),
        ("Open-MPI", "openmpi5"),
        ("open_mpi_4.1", "openmpi4"),
        ("ompi4", "openmpi4"),
        ("MPICH", "mpich"),
        ("intel", "intel"),
        ("impi", "intel"),
        ("Intel MPI", "intel"),
    ],
)
def test_a_flavour_goes_by_several_names(name: str, key: str) -> None:
    assert flavour(name) is FLAVOURS[key]


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(UsageError) as error:
        flavour("lam")
    assert all(name in error.value.why for name in FLAVOURS)


def test_the_keys_are_the_names() -> None:
    assert all(name == one.name for name, one in FLAVOURS.items())
    assert list(FLAVOURS) == ["openmpi5", "openmpi4", "mpich", "intel"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Open MPI v5.0.11, package: Open MPI user@localhost Distribution", ("openmpi5", "5.0.11")),
        ("Open MPI v4.1.8, package: Open MPI x, ident: 4.1.8", ("openmpi4", "4.1.8")),
        ("Open MPI v3.1.6, package: Debian", ("openmpi4", "3.1.6")),
        ("Open MPI v6.0.0rc1, package: x", ("openmpi5", "6.0.0rc1")),
        ("MPICH Version:      5.0.2\nMPICH Release date: Fri", ("mpich", "5.0.2")),
        ("Intel(R) MPI Library 2021.18.1 for Linux* OS\n", ("intel", "2021.18.1")),
        ("MVAPICH Version: 4.0", None),
        ("", None),
    ],
)
def test_a_library_is_told_by_its_version_string(text: str, found: tuple[str, str] | None) -> None:
    assert identify_library(text) == found


# ------------------------------------------------------------------------- host files


@pytest.mark.parametrize("name", FLAVOURS)
def test_a_host_file_leaves_out_hosts_without_slots(name: str) -> None:
    dialect = {"openmpi": "h1 slots=1\nh2 slots=3\n", "hydra": "h1:1\nh2:3\n"}
    assert FLAVOURS[name].hostfile(LAB) == dialect[FLAVOURS[name].family]
    assert FLAVOURS[name].hostfile([]) == ""


# ---------------------------------------------------------------------- command lines

# Those of a whole layout are in golden/.
COMMANDS = [
    (
        {"hostfile": ""},
        "-n 4 --map-by slot --bind-to none",
        "-n 4",
        "-n 4",
    ),
    (
        {"hosts": LAB, "ranks": None},
        "--hostfile /run/hostfile --map-by slot --bind-to none",
        "-f /run/hostfile -n 4",
        "-machinefile /run/hostfile -n 4",
    ),
    (
        {"hosts": LAB, "ranks": 2, "ranks_per_host": 1},
        "-n 2 --hostfile /run/hostfile --map-by ppr:1:node --bind-to none",
        "-f /run/hostfile -ppn 1 -n 2",
        "-f /run/hostfile -ppn 1 -n 2",
    ),
    (
        {"cpus_per_rank": 2, "oversubscribe": True, "ranks": 9},
        "-n 9 --hostfile /run/hostfile --map-by slot:OVERSUBSCRIBE --bind-to none",
        "-f /run/hostfile -n 9",
        "-machinefile /run/hostfile -n 9",
    ),
]


@pytest.mark.parametrize(("changes", "openmpi", "mpich", "intel"), COMMANDS)
def test_the_command_for_a_layout(
    changes: dict[str, object], openmpi: str, mpich: str, intel: str
) -> None:
    wanted = {"openmpi5": openmpi, "openmpi4": openmpi, "mpich": mpich, "intel": intel}
    for name, one in FLAVOURS.items():
        argv = one.command(installed(name), layout(**changes), ["python", "x y.py"])
        assert argv == ["/mpi/bin/mpirun", *wanted[name].split(), "python", "x y.py"]


# ----------------------------------------------------------------------- environments


def test_open_mpi_5_oversubscribed_still_fills_every_host() -> None:
    found = environment("openmpi5", layout(LAB, oversubscribe=True))
    assert found["PRTE_MCA_rmaps_default_mapping_policy"] == "slot:oversubscribe"


def test_intel() -> None:
    assert "I_MPI_PERHOST" not in environment("intel", layout(LAB))  # one and three
    spawning = environment("intel", layout(), I_MPI_SPAWN="on")
    assert spawning["I_MPI_FABRICS"] == "ofi"
    own = environment("intel", layout(), I_MPI_SPAWN="on", I_MPI_FABRICS="shm:ofi")
    assert "I_MPI_FABRICS" not in own  # which stays
    assert spawning["MPI4PY_RC_RECV_MPROBE"] == "false"
    assert environment("intel", layout(LAB))["MPI4PY_RC_RECV_MPROBE"] == "false"


@pytest.mark.parametrize("name", FLAVOURS)
def test_several_hosts_leave_the_transport_open(name: str) -> None:
    found = environment(name, layout(LAB))
    assert not {"OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_osc", "I_MPI_FABRICS"} & set(found)


@pytest.mark.parametrize("name", FLAVOURS)
def test_the_users_own_settings_stay(name: str) -> None:
    where = layout(cores=2, oversubscribe=True)
    everything = environment(name, where)
    for key in everything:
        assert key not in environment(name, where, **{key: "mine"})
    assert environment(name, where, **dict.fromkeys(everything, "mine")) == {}


@pytest.mark.parametrize("setting", ["OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl"])
@pytest.mark.parametrize("name", ["openmpi5", "openmpi4"])
def test_a_transport_of_the_users_is_not_contradicted(name: str, setting: str) -> None:
    found = environment(name, layout(), **{setting: "mine"})
    assert not {"OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_osc"} & set(found)


@pytest.mark.parametrize("name", FLAVOURS)
def test_no_host_file_no_setting_for_one(name: str) -> None:
    assert not any(
        "hostfile" in key.lower() or "HOST_FILE" in key
        for key in environment(name, layout(hostfile=""))
    )


def test_segments() -> None:
    assert set(FLAVOURS["openmpi5"].segments("/dev/shm/x").values()) == {"/dev/shm/x"}
    assert "OMPI_MCA_btl_vader_backing_directory" in FLAVOURS["openmpi4"].segments("/dev/shm/x")
    assert FLAVOURS["mpich"].segments("/dev/shm/x") == FLAVOURS["intel"].segments("/x") == {}


# Found after kill -9 of all processes of a job, see the head of each module.
LEFT = {
    "openmpi5": (["sm_segment.vm.0.33cb0001.0"], ["ompi.13968", "prted.22353"]),
    "openmpi4": (["vader_segment.vm.0.5a340001.2"], ["ompi.vm.0"]),
    "mpich": (["mpich_shm_e6a7158c_0"], ["hydra_hwloc_xmlfile_5oWQUY"]),
    "intel": ([], []),
}


@pytest.mark.parametrize("name", FLAVOURS)
def test_the_residue_is_recognised(name: str) -> None:
    found = FLAVOURS[name]
    kinds = (found.shared_memory_files, found.temporary_files)
    for files, patterns in zip(LEFT[name], kinds, strict=True):
        assert all(any(fnmatch(file, pattern) for pattern in patterns) for file in files)
        assert not any(fnmatch("somebody-elses.file", pattern) for pattern in patterns)


def test_a_shim_can_load_it_without_the_heavy_parts_of_python() -> None:
    code = "import sys, shanty.runtime.mpi.translate; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True
    ).stdout.split()
    assert not {"subprocess", "asyncio", "tomllib", "mpi4py", "socket"} & set(loaded)


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("openmpi5", "PRTE_MCA_rml_base_radix"),
        ("openmpi4", "OMPI_MCA_routed_radix"),
        ("intel", "I_MPI_HYDRA_BRANCH_COUNT"),
    ],
)
def test_no_daemon_starts_others(name: str, variable: str):
    """Only the lead host has a way to the others, however many they are."""
    few = tuple(HostSlots(f"h{i}", 1) for i in range(64))
    many = (*few, HostSlots("h64", 1))
    assert variable not in environment(name, layout(few))
    assert environment(name, layout(many))[variable] == "65"
    assert environment(name, layout(many), **{variable: "7"}).get(variable) is None


def test_what_a_launcher_hands_on_is_put_right():
    assert FLAVOURS["openmpi5"].moved("/p") == {"OPAL_PREFIX": "/p"}
    assert FLAVOURS["openmpi4"].moved("/p") == {"OPAL_PREFIX": "/p", "PMIX_INSTALL_PREFIX": "/p"}
    assert FLAVOURS["intel"].moved("/p") == {"I_MPI_ROOT": "/p"}
    assert FLAVOURS["mpich"].moved("/p") == {}
