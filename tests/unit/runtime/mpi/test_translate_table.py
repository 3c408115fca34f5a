"""A table of launcher lines, as people write them, and their translations."""

from __future__ import annotations

import shlex
import tomllib
from pathlib import Path

import pytest

from shanty.runtime.errors import TranslationError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.mpi.parser import exported
from shanty.runtime.mpi.translate import Translation, translate

TABLE = tomllib.loads(Path(__file__).with_name("translate_table.toml").read_text())["line"]
FILES = {
    "/run/openmpi-hosts": "localhost slots=2\n",
    "/run/hydra-hosts": "localhost:2\n",
    "/run/plain-hosts": "localhost\n",
}
GIVEN = {
    "PATH": "/usr/bin:/bin", "LD_LIBRARY_PATH": "/lib", "HOME": "/root",
    "SHANTY_TEST_A": "1", "SHANTY_TEST_B": "2",
}  # fmt: skip
LOCAL = Layout((HostSlots("localhost", 4),), None, None, None, False, 8, "/run/hostfile")
LAB = Layout(
    (HostSlots("h0", 0), HostSlots("h1", 1), HostSlots("h2", 3)),
    None, None, None, False, 8, "/run/hostfile",
)  # fmt: skip


def expected(entry: dict[str, str], flavour: str) -> str:
    family = FLAVOURS[flavour].family
    return next(entry[key] for key in (flavour, family, "all") if key in entry)


def translated(line: str, flavour: str, layout: Layout = LOCAL, **changes: object) -> Translation:
    options = {"given_environment": GIVEN, "read": FILES.get, **changes}
    return translate(shlex.split(line), FLAVOURS[flavour], layout, **options)


def as_text(translation: Translation) -> str:
    settings = (f"{k}={shlex.quote(v)}" for k, v in translation.environment.items())
    return " ".join([*settings, shlex.join(translation.argv)]).strip()


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry["given"])
def test_a_line_comes_out_as_the_table_says(entry: dict[str, str], flavour: str) -> None:
    wanted = expected(entry, flavour)
    if wanted.startswith("! "):
        with pytest.raises(TranslationError) as refused:
            translated(entry["given"], flavour)
        assert refused.value.what.startswith(wanted[2:])
        assert refused.value.exit_code == 2
        assert refused.value.why or refused.value.fix
        return
    first = translated(entry["given"], flavour)
    assert as_text(first) == wanted
    known = {**FILES, **dict(first.files)}
    second = translated(shlex.join(first.argv), flavour, read=known.get)  # changes nothing
    assert second.argv == first.argv
    assert second.files == ()


def test_the_table_is_as_large_as_promised() -> None:
    assert len(TABLE) >= 60
    assert len({entry["given"] for entry in TABLE}) == len(TABLE)


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_the_prefix_goes_before_every_program_once(flavour: str) -> None:
    prefix = ("python", "-m", "rank.exec")
    first = translated("-n 1 ./a x : -n 2 ./b -n 9", flavour, prefix=prefix)
    line = "-n 1 python -m rank.exec ./a x : -n 2 python -m rank.exec ./b -n 9"
    assert shlex.join(first.argv) == line
    assert translated(line, flavour, prefix=prefix).argv == first.argv


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("tags", ["--tag-output", "-l", "--output tag,timestamp", "-prepend-rank"])
def test_a_prefix_does_the_tagging(tags: str, flavour: str) -> None:
    result = translated(f"-n 2 {tags} ./a", flavour, prefix=["x"])
    assert result.argv == ("-n", "2", "x", "./a")
    if "timestamp" not in tags:
        assert len(result.notes) == 1


# ------------------------------------------------------------------------- several hosts


@pytest.mark.parametrize(
    ("line", "flavour", "wanted"),
    [
        ("./a", "openmpi5", "./a"),
        ("./a", "mpich", "-n 4 ./a"),
        ("./a", "intel", "-machinefile /run/hostfile -n 4 ./a"),
        ("-n 2 ./a", "intel", "-machinefile /run/hostfile -n 2 ./a"),
        ("-N 1 ./a", "mpich", "-ppn 1 -n 2 ./a"),  # two hosts: h0 has no slots
        ("-N 1 ./a", "intel", "-ppn 1 -n 2 ./a"),
        ("-N 1 --hostfile /generated/hostfile ./a", "intel", "-f /run/hostfile -ppn 1 -n 2 ./a"),
        ("-hosts h1,h2 -n 4 ./a", "openmpi5", "-n 4 --host h1:1,h2:3 ./a"),
        ("-hosts h2,x -n 4 ./a", "openmpi4", "-n 4 --host h2:3,x:2 ./a"),
        ("--host h2,h2,h1 -n 3 ./a", "mpich", "-hosts h2:2,h1 -n 3 ./a"),
        ("--host h1,h2 ./a", "intel", "-hosts h1,h2 -ppn 1 -n 2 ./a"),
    ],
)
def test_lines_over_several_hosts(line: str, flavour: str, wanted: str) -> None:
    assert as_text(translated(line, flavour, LAB)) == wanted


def test_the_number_of_ranks_that_the_run_decided() -> None:
    layout = Layout(LAB.hosts, 3, None, None, False, 8, "/run/hostfile")
    for flavour in ("openmpi5", "openmpi4", "mpich"):
        assert as_text(translated("./a", flavour, layout)) == "-n 3 ./a"
    assert as_text(translated("-n 2 ./a", "mpich", layout)) == "-n 2 ./a"
    assert as_text(translated("-N 1 ./a", "openmpi5", layout)) == "--map-by ppr:1:node ./a"


def test_a_line_that_leaves_the_one_host_undoes_what_one_host_set() -> None:
    given = {"I_MPI_FABRICS": "shm"}
    result = translated("-hosts other -n 1 ./a", "intel", given_environment=given)
    assert result.environment == {"I_MPI_FABRICS": "shm:ofi"}
    given = {"I_MPI_FABRICS": "ofi"}
    assert not translated("-hosts other -n 1 ./a", "intel", given_environment=given).environment
    assert not translated("-hosts other -n 1 ./a", "intel", LAB).environment


def test_binding_may_share_cores_in_an_oversubscribed_run() -> None:
    layout = Layout(LOCAL.hosts, None, None, None, True, 2, "/run/hostfile")
    result = translated("-n 4 --bind-to core ./a", "openmpi5", layout)
    assert as_text(result) == "-n 4 --bind-to core:overload-allowed ./a"
    again = translated(shlex.join(result.argv), "openmpi5", layout)
    assert again.argv == result.argv
    assert as_text(translated("-n 4 --bind-to none ./a", "openmpi4", layout)) == (
        "-n 4 --bind-to none ./a"
    )


# ------------------------------------------------------------------------- host files

MIXED = "# lead\nh0 slots=0\nh1 slots=2 # two\nuser@h2 slots=1 max_slots=4\nh3\nh1\n"


@pytest.mark.parametrize(
    ("flavour", "text", "wanted"),
    [
        ("mpich", "h1 slots=2\nh2 slots=0\nh3 slots=1\n", "h1:2\nh3:1\n"),
        ("mpich", MIXED, "h1:3\nuser@h2:1\nh3:1\n"),
        ("mpich", "h0:0\nh1:2\n", "h1:2\n"),  # MPICH divides by the number of slots
        ("openmpi5", "h1:2\nh2:0\nh3\n", "h1 slots=2\nh3 slots=1\n"),
        ("openmpi4", "h1:2\nh2 slots=3\n", "h1 slots=2\nh2 slots=3\n"),
        ("intel", "h1 slots=2\n", "h1:2\n"),
    ],
)
def test_a_host_file_of_the_other_dialect_is_written_anew(
    flavour: str, text: str, wanted: str
) -> None:
    result = translated(
        "-n 2 --hostfile hosts ./a", flavour, read={"hosts": text}.get, converted="/tmp/converted"
    )
    assert result.files == (("/tmp/converted", wanted),)
    assert "/tmp/converted" in result.argv
    assert "hosts" not in result.argv
    assert any("/tmp/converted" in note for note in result.notes)


@pytest.mark.parametrize(
    ("flavour", "text"),
    [
        ("openmpi5", "h1 slots=2\nh2 slots=0\n"),
        ("openmpi4", "# nothing but names\nh1\nh2\nh2\n"),
        ("mpich", "h1:2\nh2:1\n"),
        ("intel", "h1\nh2\n"),
        ("openmpi5", "fd00::2\n"),  # an address, not a number of slots
    ],
)
def test_a_host_file_of_the_own_dialect_stays_where_it_is(flavour: str, text: str) -> None:
    result = translated("-n 2 --hostfile hosts ./a", flavour, read={"hosts": text}.get)
    assert result.files == ()
    assert "hosts" in result.argv


def test_a_foreign_platforms_host_file_is_used_where_it_exists() -> None:
    read = {"/etc/mpi/hostfile": "w1 slots=1\n"}.get
    result = translated("-n 1 --hostfile /etc/mpi/hostfile ./a", "openmpi5", read=read)
    assert "/etc/mpi/hostfile" in result.argv


def test_an_empty_variable_before_the_program_is_named() -> None:
    with pytest.raises(TranslationError) as refused:
        translated("-n 2 --hostfile python train.py", "openmpi5")
    assert "variable" in refused.value.why


def test_unequal_numbers_that_intel_cannot_be_told_go_into_a_file() -> None:
    result = translated("-n 4 -H a:1,b:3 ./a", "intel", LAB, converted="/tmp/c")
    assert result.files == (("/tmp/c", "a:1\nb:3\n"),)
    assert result.argv[:2] == ("-machinefile", "/tmp/c")


# ------------------------------------------------------------------------- the run's hosts

TWO = Layout((HostSlots("10.0.0.1", 1), HostSlots("10.0.0.2", 3)), None, None, None, False, 8,
             "/run/hostfile")  # fmt: skip
KNOWN = {
    "node.one.test": {"10.0.0.1"}, "node.two.test": {"10.0.0.2"}, "10.0.0.1": {"10.0.0.1"},
    "10.0.0.2": {"10.0.0.2"}, "second.lan": {"10.0.0.2"}, "fd00::2": {"10.0.0.2"},
    "clone": {"10.0.0.1", "10.0.0.2"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("hosts", "wanted"),
    [
        ("node.one.test:1,node.two.test:1", "10.0.0.1:1,10.0.0.2:1"),
        ("Node.One.Test.:1,me@node.two.test:1", "10.0.0.1:1,10.0.0.2:1"),
        ("second:1,[fd00::2]:1,localhost", "10.0.0.2:2,10.0.0.1"),
    ],
)
def test_hosts_are_named_as_the_run_knows_them(hosts: str, wanted: str) -> None:
    """By no name could a launcher take two of them for one, or one for two."""
    for flavour in ("openmpi5", "openmpi4"):
        result = translated(f"-n 2 -H {hosts} ./a", flavour, TWO, known=KNOWN)
        assert result.argv[:4] == ("-n", "2", "--host", wanted)
    text = "node.one.test slots=1\nnode.two.test slots = 3\nsecond.lan slots=1\n"
    for flavour in FLAVOURS:
        result = translated(
            "-n 2 --hostfile hosts ./a", flavour, TWO, known=KNOWN, read={"hosts": text}.get
        )
        assert [text.split() for _, text in result.files] == [
            FLAVOURS[flavour].hostfile([HostSlots("10.0.0.1", 1), HostSlots("10.0.0.2", 4)]).split()
        ]


def test_a_host_that_is_not_one_of_the_run_is_named() -> None:
    for name, said in (
        ("node.tow.test", "node.tow.test is not a host of the run"),
        ("node.three.test", "node.three.test is not a host of the run"),
        ("node", "node may be any of 10.0.0.1, 10.0.0.2"),
        ("clone", "clone may be any of 10.0.0.1, 10.0.0.2"),
        ("10", "10 is not a host of the run"),
    ):
        with pytest.raises(TranslationError) as refused:
            translated(f"-n 1 -H {name} ./a", "openmpi5", TWO, known=KNOWN)
        assert refused.value.what == f"-H {name}: {said}"
        with pytest.raises(TranslationError):
            translated("-n 1 --hostfile f ./a", "mpich", TWO, known=KNOWN, read={"f": name}.get)


# ------------------------------------------------------------------------- notes and more


def test_notes_tell_what_was_changed() -> None:
    result = translated(
        "--allow-run-as-root -n 2 -x A=1 --mca pml ob1 --hostfile /generated/hostfile ./a", "mpich"
    )
    assert set(result.notes) == {
        "--allow-run-as-root is left out: Hydra runs as root without being asked",
        "-x A=1 is -genv A 1",
        "--mca pml ob1 is left out: it is about Open MPI's own transport",
        "/generated/hostfile does not exist here: the run's own host file is used",
    }


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_variable_that_ranks_do_not_get_is_named(flavour: str) -> None:
    for line in ("-n 2 -x UNSET ./a", "-n 2 -genvlist PATH,UNSET ./a"):
        notes = translated(line, flavour).notes
        assert any("UNSET is not set here, so ranks do not get it" in each for each in notes)
    assert translated("-n 2 --stdin none ./a", flavour).reads_input is False


def test_the_variables_that_a_line_hands_on_by_name() -> None:
    line = "-n 1 -x A -x B=1 -x 'C_*' -genvlist D,E -genv F 1 ./a -x G : -n 1 -x H ./b"
    assert exported(shlex.split(line)) == {"A", "C_*", "D", "E", "H"}
    assert exported(["--bogus", "-x", "A", "./a"]) == set()


def test_a_mistyped_option_is_told_its_nearest() -> None:
    for line, near in (
        ("--hostfil x ./a", "did you mean hostfile?"),
        ("--map-by slot:oversubscrib ./a", "did you mean oversubscribe?"),
        ("--bind-to coer ./a", "did you mean core?"),
        ("--map-by nod ./a", "did you mean node?"),
        ("--rank-by slto ./a", "did you mean slot?"),
    ):
        with pytest.raises(TranslationError) as refused:
            translated(f"-n 2 {line}", "openmpi5")
        assert refused.value.fix == near


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_a_line_in_the_own_dialect_needs_no_notes(flavour: str) -> None:
    own = {
        "openmpi": "-n 2 --hostfile /run/hostfile --map-by slot --bind-to none -x A=1 ./a",
        "hydra": "-hosts h1,h2 -ppn 1 -n 2 -genv A 1 -l ./a",
    }
    notes = translated(own[FLAVOURS[flavour].family], flavour).notes
    assert [note for note in notes if "-l is" not in note] == []
