"""Reads a line for srun: its options up to the program, and what it asks for."""

from __future__ import annotations

from typing import Dict, List, NamedTuple, Optional, Sequence, Tuple

from shanty.runtime.errors import UsageError

# Options without a value, or with one behind "=" only; that of others may be the next word, too.
_SWITCHES = frozenset(
    [
        "--bcast",
        "--bell",
        "--compress",
        "--consolidate-segments",
        "--contiguous",
        "--debugger-test",
        "--disable-status",
        "--exact",
        "--exclusive",
        "--external",
        "--help",
        "--hold",
        "--immediate",
        "--interactive",
        "--kill-on-bad-exit",
        "--label",
        "--multi-prog",
        "--nice",
        "--no-allocate",
        "--no-bcast",
        "--no-kill",
        "--no-shell",
        "--oom-kill-step",
        "--overcommit",
        "--overlap",
        "--oversubscribe",
        "--preserve-env",
        "--propagate",
        "--pty",
        "--quiet",
        "--quit-on-interrupt",
        "--reboot",
        "--resv-ports",
        "--send-libs",
        "--spread-job",
        "--spread-segments",
        "--stepmgr",
        "--test-only",
        "--unbuffered",
        "--usage",
        "--use-min-nodes",
        "--verbose",
        "--version",
        "--wait-for-children",
        "--whole",
        "--x11",
    ]
)
_LETTERS_WITH_VALUE = "AaBbcCdDeFGiJjLmMnNopqrSTtWwx"
_LETTERS_WITH_OWN = "IKk"  # a value at once behind them, or none
_COUNTS = {"-n": "tasks", "--ntasks": "tasks", "-N": "nodes", "--nodes": "nodes", "-c": "cpus",
           "--cpus-per-task": "cpus", "--ntasks-per-node": "per_node"}  # fmt: skip


class SrunLine(NamedTuple):
    """A line for srun. The numbers are None where it does not say them, `mpi` is "" then."""

    options: List[str]
    program: List[str]
    tasks: Optional[int] = None
    nodes: Optional[int] = None
    cpus: Optional[int] = None
    per_node: Optional[int] = None
    mpi: str = ""

    @property
    def shares(self) -> bool:
        """True where it says itself how it shares the job's nodes with other steps."""
        names = {word.partition("=")[0] for word in self.options}
        return bool(names & {"--overlap", "--exact", "--exclusive", "--whole"})


def parse(words: Sequence[str]) -> SrunLine:
    """Read the words behind `srun`; UsageError for what cannot be a run's line."""
    given: List[Tuple[str, str]] = []
    index = 0
    while index < len(words) and words[index].startswith("-") and words[index] != "-":
        word = words[index]
        index += 1
        if word == "--":
            break
        name, equals, value = word.partition("=")
        if word.startswith("--"):
            if not equals and name not in _SWITCHES:
                if index == len(words):
                    raise UsageError(f"{name} of srun needs a value")
                value = words[index]
                index += 1
        else:
            while word[1] not in _LETTERS_WITH_VALUE + _LETTERS_WITH_OWN and len(word) > 2:
                given.append((word[:2], ""))  # as in -ln4
                word = f"-{word[2:]}"
            name, value = word[:2], word[2:].lstrip("=")
            if name[1] in _LETTERS_WITH_VALUE and not value:
                if index == len(words):
                    raise UsageError(f"{name} of srun needs a value")
                value = words[index]
                index += 1
        given.append((name, value))
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
        if name in _COUNTS and value.partition("-")[0].isdigit():
            counts[_COUNTS[name]] = int(value.partition("-")[0])
        elif name == "--mpi":
            mpi = value
    tasks, nodes = counts.get("tasks"), counts.get("nodes")
    return SrunLine(options, program, tasks, nodes, counts.get("cpus"), counts.get("per_node"), mpi)
