"""Puts Slurm's words for a job that waits, or has ended, into plain ones."""

from __future__ import annotations

import re

# What `squeue` gives as the reason of a job that waits.
_REASONS = {
    "Priority": "jobs of higher priority come first",
    "Resources": "it is next, and waits for nodes to become free",
    "Dependency": "it waits for another job",
    "DependencyNeverSatisfied": "it waits for another job that can never end as it should",
    "BeginTime": "it may not begin before its time",
    "JobHeldUser": "it is held; `scontrol release` lets it go on",
    "JobHeldAdmin": "it is held by an administrator",
    "Reservation": "it waits for its reservation",
    "ReservationDeleted": "its reservation is gone",
    "Licenses": "it waits for a licence",
    "ReqNodeNotAvail": "nodes that it asks for are down, drained or reserved",
    "NodeDown": "a node that it asks for is down",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is not active",
    "PartitionNodeLimit": "its partition does not give so many nodes to a job",
    "PartitionTimeLimit": "its time is above the limit of its partition",
    "BadConstraints": "no node can ever give what it asks for",
    "AccountNotAllowed": "its partition does not take jobs of that account",
    "QOSNotAllowed": "its partition or account does not take that QOS",
    "InvalidAccount": "its account does not exist",
    "InvalidQOS": "its QOS does not exist",
    "Cleaning": "it is being cleaned up from before",
    "Prolog": "its nodes are being made ready",
    "NodeFailure": "one of its nodes has failed",
    "FrontEndDown": "no front end is up",
    "launch_failed_requeued_held": "a node could not start it, so Slurm holds it",
    "SystemFailure": "Slurm itself has failed",
    "JobLaunchFailure": "a node could not start it",
    "BurstBufferResources": "it waits for burst buffer space",
}
_LIMITS = {
    "QOS": "a limit of its QOS", "Assoc": "a limit of its account or user",
    "Max": "a limit of its QOS or account",
}  # fmt: skip


def in_words(reason: str) -> str:
    """Explains why a job waits, by the reason that Slurm gives; an unknown reason stays."""
    reason = reason.strip().strip("()")
    if reason in ("", "None", "N/A"):
        return "Slurm has not looked at it yet"
    plain = reason.replace(" ", "_")
    for word in (reason, plain, re.split(r"[,\s]", reason)[0]):
        if word in _REASONS:
            detail = reason.partition(", ")[2]
            return _REASONS[word] + (f" ({detail})" if detail else "")
    for start, text in _LIMITS.items():
        if reason.startswith(start) and re.search(r"Limit|Max|Grp|Min", reason):
            return f"{text} is reached ({reason})"
    return f"Slurm says: {reason}"


def ordinal(place: int) -> str:
    """1st, 2nd, 3rd, 4th, 11th …"""
    last = {1: "st", 2: "nd", 3: "rd"}.get(place % 10, "th")
    return f"{place}{'th' if place % 100 in (11, 12, 13) else last}"


def waiting(reason: str, place: int, others: int, start: str) -> str:
    """All that is known of a job that waits, in one line; `place` 0 and `start` "": unknown."""
    parts = [in_words(reason)]
    if place and others > 1:
        parts.append(f"{ordinal(place)} of {others} that wait in its partition")
    if start:
        parts.append(f"expected to start at {start.replace('T', ' ')}")
    return "; ".join(parts)
