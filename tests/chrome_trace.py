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
