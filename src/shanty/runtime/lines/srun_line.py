"""Reads a line for srun: its options up to the program, and what it asks for."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence

from shanty.runtime.errors import UsageError
from shanty.runtime.lines.leading_options import split

# Options without a value, or with a value after "=" only; for others it may be the next word.
_NAMES = (
    "--bcast --bell --compress --consolidate-segments --contiguous --debugger-test "
    "--disable-status --exact --exclusive --external --help --hold --immediate "
    "--interactive --kill-on-bad-exit --label --multi-prog --nice --no-allocate --no-bcast "
    "--no-kill --no-shell --oom-kill-step --overcommit --overlap --oversubscribe "
    "--preserve-env --propagate --pty --quiet --quit-on-interrupt --reboot --resv-ports "
    "--send-libs --spread-job --spread-segments --stepmgr --test-only --unbuffered --usage "
    "--use-min-nodes --verbose --version --wait-for-children --whole --x11"
)
_SWITCHES = frozenset(_NAMES.split())
_LETTERS_WITH_VALUE = "AaBbcCdDeFGiJjLmMnNopqrSTtWwx"
_LETTERS_WITH_OWN = "IKk"  # a value in the same word, or none
_COUNTS = {"-n": "tasks", "--ntasks": "tasks", "-N": "nodes", "--nodes": "nodes", "-c": "cpus",
           "--cpus-per-task": "cpus", "--ntasks-per-node": "per_node"}  # fmt: skip


class SrunLine(NamedTuple):
    """A line for srun. Numbers that it lacks are None, and `mpi` is "" then."""

    options: List[str]
    program: List[str]
    tasks: Optional[int] = None
    nodes: Optional[int] = None
    cpus: Optional[int] = None
    per_node: Optional[int] = None
    mpi: str = ""

    @property
    def shares(self) -> bool:
        """True where an option says how it shares the job's nodes with other steps."""
        names = {word.partition("=")[0] for word in self.options}
        return bool(names & {"--overlap", "--exact", "--exclusive", "--whole"})


def _takes_value(name: str) -> bool:
    return name not in _SWITCHES if name.startswith("--") else name[1] in _LETTERS_WITH_VALUE


def parse(words: Sequence[str]) -> SrunLine:
    """Read the words after `srun`; UsageError for a line that cannot be a run."""
    given, index = split(words, _takes_value, _LETTERS_WITH_OWN)
    for name, value in given:
        if value is None and _takes_value(name):
            raise UsageError(f"{name} of srun needs a value")
    options, program = list(words[:index]), list(words[index:])
    if options and options[-1] == "--":
        options.pop()
    if not program:
        raise UsageError("the line for srun names no program", fix="srun -n 4 python train.py")
    names = [name for name, _ in given]
    for name, why in (
        ("--multi-prog", "each of its programs would have to be known"),
        ("--het-group", "a run has one kind of nodes"),
    ):
        if name in names:
            raise UsageError(f"{name} of srun has no counterpart here", why)
    if ":" in program:
        raise UsageError("a line for several programs (:) has no counterpart here")
    counts: Dict[str, Optional[int]] = {}
    mpi = ""
    for name, value in given:
        least = (value or "").partition("-")[0]  # of 2-4
        if name in _COUNTS and least.isdigit():
            counts[_COUNTS[name]] = int(least)
        elif name == "--mpi":
            mpi = value or ""
    tasks, nodes = counts.get("tasks"), counts.get("nodes")
    return SrunLine(options, program, tasks, nodes, counts.get("cpus"), counts.get("per_node"), mpi)
