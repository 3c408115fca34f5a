"""Reads the stalls of a run, and describes them."""

from __future__ import annotations

from typing import Any

from shanty.launch.stack_text import grouped
from shanty.launch.stack_text import label as label
from shanty.launch.stack_text import text_of as text_of
from shanty.runtime.counted import counted
from shanty.runtime.rundir import RunDir, read_lines


def stalls_of(run: RunDir) -> list[dict[str, Any]]:
    """Read the stalls of a run so far, as its controller wrote them down."""
    return read_lines(run.stalls)


def report(stall: dict[str, Any]) -> str:
    """Describe a stall: what keeps the run from going on, all stacks, the hosts and their links.

    The stacks of the ranks that stand elsewhere than the others come first.
    """
    lines = [stall["what"]]
    if stall["fix"]:
        lines.append(f"  fix: {stall['fix']}")
    odd = set(stall["odd"])
    for group in grouped(stall["stacks"], all_threads=False, first=odd):
        head = "  ← out of step" if odd & set(group.ranks) else ""
        lines += ["", f"{label(group.ranks)}:{head}", group.text]
    lines.append("")
    for host in stall["hosts"]:
        mine = [rank for rank in stall["ranks"] if rank["host"] == host["name"]]
        lines.append(f"{host['name']}: {_load(host)}; {_use(mine)}; {_links(host)}")
    return "\n".join(lines)


def _load(host: dict[str, Any]) -> str:
    text = f"load {host['load']:g} on {counted(host['cores'], 'core')}"
    text += f", {host['free'] / 2**30:.1f} of {host['total'] / 2**30:.1f} GiB memory free"
    return text + (f", silent for {host['silent']:g} s" if host["silent"] > 3 else "")


def _use(ranks: list[dict[str, Any]]) -> str:
    shown = ", ".join(f"{r['rank']} {r['state']} {r['cpu'] * 100:.0f} %" for r in ranks[:8])
    more = f" and {len(ranks) - 8} more" if len(ranks) > 8 else ""
    return f"ranks' state and CPU: {shown or 'none'}{more}"


def _links(host: dict[str, Any]) -> str:
    parts = []
    for link in (link for link in host["links"] if link["used"]):
        text = f"{link['name']} " + (f"{link['bytes'] >> 10} KiB" if link["carries"] else "down")
        parts.append(text + (f", {link['errors']} errors" if link["errors"] else ""))
    sent, again = host["tcp"]
    if again:
        parts.append(f"{again} of {sent} TCP segments sent again")
    return ", ".join(parts) or "no links"
