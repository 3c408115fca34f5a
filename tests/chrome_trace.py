"""Reads the files of timelines, and checks what every reader of Chrome traces relies on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

Event = dict[str, Any]


def read(path: Path) -> list[Event]:
    events: list[Event] = json.loads(path.read_text())
    return events


def lanes(events: list[Event]) -> dict[str, list[Event]]:
    """The events of each tensor, in the file's order."""
    names: dict[int, str] = {}
    for event in events:
        if event["ph"] == "M" and event["name"] == "process_name":
            names[event["pid"]] = event["args"]["name"]
    found: dict[str, list[Event]] = {name: [] for name in names.values()}
    for event in events:
        if event["ph"] != "M":
            found[names[event["pid"]]].append(event)
    return found


def nested(events: list[Event]) -> None:
    """Each event has what a reader asks for; time goes on; each B has its E, in each lane."""
    for lane in lanes(events).values():
        depth, last = 0, 0
        for event in lane:
            assert event["ph"] in "BEXi", event
            assert event["pid"] == event["tid"], event
            assert event["ph"] == "E" or event["name"], event
            assert event["ts"] >= last, (event, last)
            last = event["ts"]
            depth += {"B": 1, "E": -1}.get(event["ph"], 0)
            assert 0 <= depth <= 2, event
        assert depth == 0, lane


def rows(events: list[Event]) -> dict[str, dict[str, list[Event]]]:
    """The events of a run's profile by the names of their process and thread, in time's order."""
    names: dict[str, dict[tuple[int, ...], str]] = {"process_name": {}, "thread_name": {}}
    for event in events:
        if event["ph"] == "M" and event["name"] in names:
            key = (event["pid"], event["tid"])[: 1 + (event["name"] == "thread_name")]
            names[event["name"]][key] = event["args"]["name"]
    found: dict[str, dict[str, list[Event]]] = {name: {} for name in names["process_name"].values()}
    for (pid, tid), name in names["thread_name"].items():
        here = [e for e in events if e["ph"] != "M" and (e["pid"], e["tid"]) == (pid, tid)]
        found[names["process_name"][(pid,)]][name] = sorted(here, key=lambda event: event["ts"])
    return found


def spans(events: list[Event], name: str) -> list[tuple[int, int]]:
    """Begin and end of each span of that name; `events` are those of one thread."""
    found: list[tuple[int, int]] = []
    begun: list[tuple[str, int]] = []
    for event in events:
        if event["ph"] == "B":
            begun.append((event["name"], event["ts"]))
        elif event["ph"] == "E":
            what, since = begun.pop()
            found += [(since, event["ts"])] if what == name else []
        elif event["ph"] == "X" and event["name"] == name:
            found.append((event["ts"], event["ts"] + event["dur"]))
    return found
