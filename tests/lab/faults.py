"""All faults that are planted in the lab, and the page of the documentation that is made of them.

    python tests/lab/faults.py > docs/faults.md

`faults_bare.json` beside this file says what a bare mpirun did with each (`faults_bare.py`),
`faults_shanty.json` what doctor said and how soon (SHANTY_RECORD_FAULTS=1, test_faults.py).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).parents[1])]

from faults_between import BETWEEN
from faults_case import Fault
from faults_hosts import HOSTS
from faults_mpi import MPIS
from faults_running import RUNNING
from faults_ways import WAYS

from shanty.launch.finding import CODES

PARTS: Mapping[str, list[Fault]] = {
    "The way to a host": WAYS,
    "A host itself": HOSTS,
    "Between hosts": BETWEEN,
    "MPI": MPIS,
}
TABLE: tuple[Fault, ...] = tuple(fault for part in PARTS.values() for fault in part)
RECORD = Path(__file__).with_name("faults_shanty.json")
BARE = Path(__file__).with_name("faults_bare.json")
# Codes that no case of the table has, and why.
NOT_PLANTED: Mapping[str, str] = {
    "libc-old": "a host of a lab has the C library of the machine",
    **dict.fromkeys(
        (code for code in CODES if code.startswith(("cluster-", "pod-"))),
        "of a cluster, which a lab is not: tests/kubernetes",
    ),
}
_HEAD = """\
# Faults, and what becomes of them

Each row is a test: the fault is planted in a lab of three hosts (`lab1` is the lead host; *it* is the host that the finding names), and `shanty doctor` has to name it by its code and its host within 10 s (20 s where packets vanish, marked ⧖, and somebody has to wait), and nothing else with it. This page is made from those tests.

*Bare mpirun* is Open MPI {version} with keys, host file and MPI set up by hand on all hosts, given an allreduce of 4 MB and an alltoall, and killed after {bound} s. *shanty* is the time of the whole command. `shanty run` makes the same checks when a launch fails.
"""  # noqa: E501
_RUNNING = """\
## While a run is on

Planted in the middle of a run, or before it where that is the point, on every MPI. Where ranks stand still, their hosts try each other ([stalls.md](stalls.md)), and the run names hosts and cause: within 30 s of the fault with `--stall-after 6s --on-stall stop`, as the tests have it (a slow link: 60 s); with the usual `--stall-after 60s` that is tried, and told, from 20 s on, and with `--on-stall stop` at 60 s.
"""  # noqa: E501
_COLUMNS = ("Fault", "Code", "Bare mpirun", "shanty", "The fix that it tells")
_BARE_VERSION, _BARE_BOUND = "5.0.11", 35


def page(bare: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    """The page of the documentation, in Markdown."""
    lines = [_HEAD.format(version=_BARE_VERSION, bound=_BARE_BOUND)]
    for title, faults in PARTS.items():
        lines += [f"## {title}", "", _row(_COLUMNS), _row("---" for _ in _COLUMNS)]
        lines += [_row(_cells(fault, bare, told)) for fault in faults]
        lines.append("")
    lines += [_RUNNING, _row(("Fault", "What a run says")), _row(("---", "---"))]
    lines += [
        _row((one.title, f"`{one.told or one.says}`" if one.says else "nothing: it works"))
        for one in RUNNING
    ]
    lines.append("")
    lines += ["## Not planted", "", _row(("Code", "Why not")), _row(("---", "---"))]
    lines += [_row((f"`{code}`", why)) for code, why in NOT_PLANTED.items()]
    return "\n".join(lines) + "\n"


def _row(cells: Any) -> str:
    return f"| {' | '.join(str(cell).replace('|', '&#124;') for cell in cells)} |"


def _cells(fault: Fault, bare: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    seen = told.get(fault.name)
    marks = {"error": "", "warning": " (warning)", "note": " (note)"}
    return [
        fault.title,
        f"`{fault.code}`{marks[fault.level]}",
        fault.bare or _outcome(bare.get(fault.name)),
        f"{seen['seconds']:.0f} s{' ⧖' if fault.drops else ''}" if seen else "",
        _fix(seen) if seen else "",
    ]


def _outcome(seen: Mapping[str, Any] | None) -> str:
    if seen is None:
        return ""
    if seen["how"] == "works":
        return f"works, {seen['seconds']:.1f} s"
    said = f": `{seen['said']}`" if seen["said"] else ", without a word"
    if seen["how"] == "hangs":
        return f"**hangs**{said}"
    if seen["how"] == "runs apart":
        return f"each rank believes to be alone{said}"
    return f"ends with {seen['code']} after {seen['seconds']:.1f} s{said}"


def _fix(seen: Mapping[str, Any]) -> str:
    command = seen.get("command", "")
    return f"{seen['fix']}{f': `{command}`' if command else ''}"


def main() -> None:
    """Print the page."""
    found = [json.loads(path.read_text()) if path.exists() else {} for path in (BARE, RECORD)]
    sys.stdout.write(page(*found))


if __name__ == "__main__":
    main()
