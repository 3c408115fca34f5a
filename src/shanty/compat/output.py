"""What a run prints, as `shanty run --json` tells it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_LINES = 20  # of the rank that failed, in an error


class Output:
    """Follows a run: shows its ranks' lines, keeps where it is and how it ended."""

    def __init__(self, ranks: int, folder: Path | None) -> None:
        self.run: Path | None = None
        self.ended: dict[str, Any] = {}
        self._folder = folder
        self._digits = len(str(ranks - 1))

    def follow(self, lines: Iterable[bytes]) -> None:
        """Take the lines of `shanty run --json` until they end."""
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event["event"] == "started":
                self.run = Path(event["path"])
            elif event["event"] == "output":
                self._show(event)
            elif event["event"] == "ended":
                self.ended = event

    def _show(self, event: dict[str, Any]) -> None:
        rank, text = event["rank"], event["text"] + "\n" * event["whole"]
        stream = sys.stderr if event["stream"] == "stderr" else sys.stdout
        stream.write(f"[{rank}] {text}" if rank is not None else text)
        stream.flush()
        if self._folder is not None and rank is not None:
            folder = self._folder / f"rank.{rank:0{self._digits}}"
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / event["stream"]).open("a") as file:
                file.write(text)

    def failure(self) -> str:
        """How the run failed, and the last lines of the rank that did."""
        failure = self.ended.get("failure") or {}
        parts = [failure.get("what") or "the ranks could not be started"]
        parts += [failure[key] for key in ("why", "fix") if failure.get(key)]
        parts += [f"  | {line}" for line in failure.get("lines", ())[-_LINES:]]
        return "\n".join(parts)
