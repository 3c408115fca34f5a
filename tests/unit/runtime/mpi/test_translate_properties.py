"""Random launcher lines: what holds for every one of them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from runs import examples
from shanty.runtime.errors import TranslationError
from shanty.runtime.mpi.flavours import FLAVOURS
from shanty.runtime.mpi.layout import HostSlots, Layout
from shanty.runtime.mpi.options import OPTIONS
from shanty.runtime.mpi.parser import parse
from shanty.runtime.mpi.translate import Translation, translate

FILES = {"open": "h1 slots=2\nh2 slots=1\nh3 slots=0\n", "hydra": "h1:2\nh2:1\n", "names": "h1\n"}
PREFIX = ("python", "-I", "rank.exec")
ASKS = {"version", "V", "help", "h", "info"}

numbers = st.integers(1, 64).map(str)
words = st.text("abcXYZ019._/=,%", min_size=1, max_size=8).filter(lambda w: w != ":")
names = st.sampled_from(["A", "PATH", "NCCL_DEBUG", "OMP_NUM_THREADS"])
bindings = st.sampled_from(
    ["none", "core", "core:2", "socket", "package", "numa", "hwthread", "l3cache", "rr", "user:0,1"]
)
mappings = st.sampled_from(
    ["slot", "node", "core", "socket", "ppr:2:node", "ppr:1:socket", "slot:PE=2", ":OVERSUBSCRIBE",
     "node:oversubscribe", "slot:NOLOCAL", "seq", "core:span"]
)  # fmt: skip
parameters = st.sampled_from(
    [("pml", "ob1"), ("btl", "^openib"), ("btl", "self,sm"), ("btl_tcp_if_include", "eth0"),
     ("oob_tcp_if_include", "eth0,ib0"), ("plm_rsh_agent", "ssh -p 22"), ("orte_tmpdir_base", "/t"),
     ("rmaps_base_mapping_policy", "node"), ("hwloc_base_binding_policy", "core"),
     ("rmaps_base_oversubscribe", "1"), ("orte_default_hostfile", "open"), ("gds", "hash")]
)  # fmt: skip

VALUES: dict[str, st.SearchStrategy[tuple[str, ...]]] = {
    "n": numbers.map(lambda n: (n,)),
    "bind-to": bindings.map(lambda b: (b,)),
    "map-by": mappings.map(lambda m: (m,)),
    "rank-by": st.sampled_from(["slot", "node", "core", "fill"]).map(lambda r: (r,)),
    "ppr": st.just(("2:node",)),
    "hostfile": st.sampled_from(["open", "hydra", "names"]).map(lambda f: (f,)),
    "host": st.sampled_from(["h1", "h1:2,h2", "h1,h1,h2"]).map(lambda h: (h,)),
    "hosts": st.sampled_from(["h1,h2", "h1:2,h2:2", "h1:1,h2:3"]).map(lambda h: (h,)),
    "x": st.tuples(st.one_of(names, st.builds("{}={}".format, names, words), st.just("NCCL_*"))),
    "genv": st.one_of(st.tuples(names, words.filter(lambda w: "=" not in w)), st.just(("A=b",))),
    "genvlist": st.just(("PATH,A",)),
    "stdin": st.sampled_from(["all", "none", "0"]).map(lambda s: (s,)),
    "s": st.sampled_from([("all",), ("0",), ()]),
    "timeout": numbers.map(lambda n: (n,)),
    "output": st.sampled_from(["tag", "tag,timestamp", "merge", "dir=out"]).map(lambda o: (o,)),
    "display": st.sampled_from(["map", "map,bind", "topo"]).map(lambda d: (d,)),
    "with-ft": st.sampled_from(["ulfm", "none"]).map(lambda w: (w,)),
    "launcher": st.sampled_from(["ssh", "slurm", "fork"]).map(lambda x: (x,)),
    "mca": parameters,
}
for counted in ("npernode", "ppn", "npersocket", "cpus-per-proc"):
    VALUES[counted] = VALUES["n"]
VALUES["env"] = VALUES["genv"]
VALUES["envlist"] = VALUES["genvlist"]
for flag in ("gmca", "prtemca", "pmixmca"):
    VALUES[flag] = parameters


@st.composite
def options(draw: st.DrawFn) -> list[str]:
    spelled = draw(st.sampled_from(sorted(set(OPTIONS) - ASKS)))
    option = OPTIONS[spelled]
    plain = st.tuples(*[words.filter(lambda w: not w.startswith("-"))] * option.values)
    values = draw(VALUES.get(option.name, plain))
    return [draw(st.sampled_from(["-", "--"])) + spelled, *values]


programs = st.lists(words.filter(lambda w: not w.startswith("-")), min_size=1, max_size=4).flatmap(
    lambda program: st.lists(st.sampled_from(["-n", "--hostfile", "x"]), max_size=3).map(
        lambda more: program + more
    )
)
counts = st.one_of(st.just([]), numbers.map(lambda n: ["-np", n]))


@st.composite
def contexts(draw: st.DrawFn) -> tuple[list[str], list[str]]:
    # Few options a line: the more there are, the likelier one of them is refused.
    chosen = draw(st.lists(options(), max_size=3))
    return [*draw(counts), *[word for option in chosen for word in option]], draw(programs)


@st.composite
def lines(draw: st.DrawFn) -> tuple[list[str], list[list[str]]]:
    parts = draw(st.lists(contexts(), min_size=1, max_size=2))
    line: list[str] = []
    for opts, program in parts:
        line += [":"] if line else []
        line += [*opts, *program]
    return line, [program for _, program in parts]


ONE_HOST = Layout((HostSlots("localhost", 4),), None, None, None, False, 4, "/run/hostfile")
layouts = st.builds(
    Layout,
    hosts=st.sampled_from(
        [
            (HostSlots("localhost", 4),),
            (HostSlots("h1", 2), HostSlots("h2", 1)),
            (HostSlots("h0", 0), HostSlots("h1", 3)),
        ]
    ),
    ranks=st.sampled_from([None, 2, 5]),
    ranks_per_host=st.none(),
    cpus_per_rank=st.none(),
    oversubscribe=st.booleans(),
    cores=st.just(4),
    hostfile=st.sampled_from(["/run/hostfile", ""]),
)
flavours = st.sampled_from(sorted(FLAVOURS))


def attempt(
    line: list[str],
    flavour: str,
    layout: Layout,
    prefix: tuple[str, ...] = (),
    files: dict[str, str] = FILES,
) -> Translation | None:
    try:
        return translate(
            line,
            FLAVOURS[flavour],
            layout,
            prefix=prefix,
            given_environment={"PATH": "/bin", "NCCL_DEBUG": "INFO"},
            read=files.get,
        )
    except TranslationError as refused:
        assert refused.what
        return None


def ranks_of(argv: Sequence[str]) -> int | None:
    """Returns how many ranks a line asks for, None when it leaves that to the launcher."""
    total = 0
    for context in parse(argv).contexts:
        counts = [option.number for option in context.options if option.name == "n"]
        if not counts:
            return None
        total += counts[-1]
    return total or None


@settings(deadline=None, max_examples=examples(400))
@given(lines(), flavours, layouts, st.sampled_from([(), PREFIX]))
@example((["-display-allocation", "-genv", "A=b", "0"], [["0"]]), "openmpi5", ONE_HOST, ())
def test_a_translated_line(
    line: tuple[list[str], list[list[str]]], flavour: str, layout: Layout, prefix: tuple[str, ...]
) -> None:
    """Its programs are untouched and prefixed once, its ranks are as many, its options are those of
    the flavour, and it is a fixed point.
    """
    first = attempt(line[0], flavour, layout, prefix)
    if first is None:
        return
    found = parse(first.argv).contexts
    assert [list(each.program) for each in found] == [[*prefix, *program] for program in line[1]]
    asked = ranks_of(line[0])
    assert asked is None or ranks_of(first.argv) == asked
    family = FLAVOURS[flavour].family
    for option in (one for context in found for one in context.options):
        rule = OPTIONS[option.name].rules[flavour]
        assert rule[0] in "=@", f"{option.spelled} is not an option of {flavour}"
        if family == "openmpi" and len(option.spelled.lstrip("-")) > 1:
            assert option.spelled.startswith("--")
        if family == "hydra":
            assert not option.spelled.startswith("--")
    second = attempt(list(first.argv), flavour, layout, prefix, {**FILES, **dict(first.files)})
    assert second is not None
    assert second.argv == first.argv
    assert second.files == ()


ODD = (
    "- -- : -n -np -x -mca --hostfile -genv -s = -n= --map-by -bind-to --host , :2 -hosts "
    "--output --help"
)
garbage = st.lists(
    st.one_of(
        st.sampled_from(["", *ODD.split()]),
        st.sampled_from(sorted(OPTIONS)).map(lambda name: "--" + name),
        st.text(max_size=6),
    ),
    max_size=8,
)


@settings(deadline=None, max_examples=examples(1000))
@given(garbage, flavours, layouts)
def test_garbage_is_refused_or_translated_but_never_crashes(
    line: list[str], flavour: str, layout: Layout
) -> None:
    attempt(line, flavour, layout)
    with contextlib.suppress(TranslationError):
        parse(line)


@pytest.mark.parametrize("flavour", FLAVOURS)
@given(text=st.text(max_size=60))
def test_any_text_can_be_a_host_file(flavour: str, text: str) -> None:
    layout = Layout((HostSlots("localhost", 2),), None, None, None, False, 2, "/run/hostfile")
    attempt(["-n", "2", "--hostfile", "file", "./a"], flavour, layout, files={"file": text})
