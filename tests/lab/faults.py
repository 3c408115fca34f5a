"""All faults that are planted in the lab, and the page of the documentation that lists them.

    python tests/lab/faults.py > docs/help/faults.md

`faults_bare.json` next to this file has the results of a bare mpirun (`faults_bare.py`),
`faults_shanty.json` those of `shanty doctor` (SHANTY_RECORD_FAULTS=1, test_faults.py).
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

from script_faults import SCRIPTS
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
        "found in a Kubernetes cluster: tests/kubernetes",
    ),
}
_HEAD = """\
# Faults and how they are reported

Each row is a test: the fault is planted in a lab of three hosts (`lab1` is the lead host; *it* is the host that the finding names). Within 10 s, `shanty doctor` must report its code and its host, and nothing else; where packets vanish (marked ⧖), it must wait for them and has 20 s. This page is generated from those tests.

*Bare mpirun* is Open MPI {version} with keys, host file and MPI set up by hand on all hosts. It runs an allreduce of 4 MB and an alltoall, and is killed after {bound} s. *shanty* is the time of the whole command. `shanty run` makes the same checks when a launch fails.
"""  # noqa: E501
_RUNNING = """\
## During a run

These faults are planted in the middle of a run, or before it where necessary, with every MPI. When ranks make no progress, their hosts test the connections between them ([stalls](../concepts/stalls.md)), and the run reports hosts and cause. The tests use `--stall-after 6s --on-stall stop`; then the report comes within 30 s of the fault (for a slow link: 60 s). With the default `--stall-after 60s`, hosts test their connections and report from 20 s on, and `--on-stall stop` ends the run at 60 s.
"""  # noqa: E501
_SCRIPTS = """\
## Mistakes in scripts

Each is run on two ranks of one machine (`host`), with `--stall-after 2s --on-stall stop`.
"""
_COLUMNS = ("Fault", "Code", "Bare mpirun", "shanty", "Fix")
_BARE_VERSION, _BARE_BOUND = "5.0.11", 35


def page(bare: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    """The page of the documentation, in Markdown."""
    lines = [_HEAD.format(version=_BARE_VERSION, bound=_BARE_BOUND)]
    for title, faults in PARTS.items():
        lines += [f"## {title}", "", _row(_COLUMNS), _row("---" for _ in _COLUMNS)]
        lines += [_row(_cells(fault, bare, told)) for fault in faults]
        lines.append("")
    lines += [_RUNNING, _row(("Fault", "Message of the run")), _row(("---", "---"))]
    lines += [
        _row((one.title, f"`{one.told or one.says}`" if one.says else "nothing: it works"))
        for one in RUNNING
    ]
    lines += ["", _SCRIPTS, _row(("Mistake", "Message of the run")), _row(("---", "---"))]
    lines += [_row((one.title, f"`{one.told}`")) for one in SCRIPTS]
    lines.append("")
    lines += ["## Not planted", "", _row(("Code", "Reason")), _row(("---", "---"))]
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
    said = f": `{seen['said']}`" if seen["said"] else " silently"
    if seen["how"] == "hangs":
        return f"**hangs**{said}"
    if seen["how"] == "runs apart":
        return f"each rank runs alone{said}"
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
