"""TensorBoard: event files, by tensorboard's own writer or by tensorboardX.

The files of rank 0 are in the folder itself, those of other ranks in subfolders, which TensorBoard
shows as further runs. It accepts numbers only.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from shanty._sinks.record import Place, Record

_FLUSH = 5  # seconds after which values are in the file
_QUEUE = 100  # events that wait for that at most


class Sink:
    """Writes one event a call."""

    def __init__(self, place: Place) -> None:
        folder = place.folder if place.rank == 0 else place.folder / f"rank-{place.rank}"
        self._writer: Any
        if find_spec("tensorboard") is not None:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter

            self._writer = EventFileWriter(str(folder), _QUEUE, _FLUSH)
        else:
            from tensorboardX.event_file_writer import EventFileWriter
            from tensorboardX.proto.event_pb2 import Event
            from tensorboardX.proto.summary_pb2 import Summary

            self._writer = EventFileWriter(str(folder), _QUEUE, _FLUSH)
        self._event, self._summary = Event, Summary

    def write(self, record: Record) -> None:
        """Add all numbers, each under its name."""
        values = [
            self._summary.Value(tag=name, simple_value=number)
            for name, number in record.numbers.items()
        ]
        if values:
            summary = self._summary(value=values)
            event = self._event(wall_time=record.time, step=record.step, summary=summary)
            self._writer.add_event(event)

    def close(self, *, failed: bool) -> None:
        """Write the remaining events."""
        self._writer.close()
