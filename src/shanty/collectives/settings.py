"""The settings in Horovod's environment variables, read once by `init`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

MIB = 1 << 20
DYNAMIC = "DYNAMIC"
"""The value of HOROVOD_TIMELINE with which no timeline is written before `start_timeline`."""

_LEVELS = ("trace", "debug", "info", "warning", "error", "fatal", "off")
_YES = ("1", "true", "yes", "on")
_NO = ("", "0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Settings:
    """Horovod's settings as far as they have a meaning here; its other variables are ignored.

    fusion_threshold: bytes of tensors that are reduced together at most; 0 fuses nothing.
    cycle_time: seconds that small tensors wait for others to travel with, unless somebody waits;
        None if that is left to the controller.
    cache_capacity: how many requests the ranks know by a number, so that a round about them costs
        next to nothing; 0 turns that off.
    timeline: file that the timeline is written to from the start; "" for none, "DYNAMIC" for
        none before `start_timeline`.
    timeline_mark_cycles: whether it shows the cycles, too.
    stall_check: whether requests that not all ranks have made are reported.
    stall_warning: seconds after which they are.
    stall_shutdown: seconds after which they fail on all ranks; 0 for never.
    log_level: one of trace, debug, info, warning, error, fatal, off.
    name: the front end's, for messages.
    dynamic_process_sets: whether process sets may come and go; they may without it, too.
    """

    fusion_threshold: int = 128 * MIB
    cycle_time: float | None = None
    cache_capacity: int = 1024
    timeline: str = ""
    timeline_mark_cycles: bool = False
    stall_check: bool = True
    stall_warning: float = 60.0
    stall_shutdown: float = 0.0
    log_level: str = "warning"
    dynamic_process_sets: bool = False
    name: str = "shanty"

    @classmethod
    def read(cls, env: Mapping[str, str] | None = None, name: str = "shanty") -> Self:
        """Read these variables; the process's own by default. name: the front end's.

        Raises ValueError, with the variable's name, for a value that means nothing.
        """
        seen = _Variables(os.environ if env is None else env)
        standard = cls()
        return cls(
            fusion_threshold=seen.whole("FUSION_THRESHOLD", standard.fusion_threshold),
            cycle_time=seen.number("CYCLE_TIME", 0) / 1000 if seen.text("CYCLE_TIME") else None,
            cache_capacity=seen.whole("CACHE_CAPACITY", standard.cache_capacity),
            timeline=seen.text("TIMELINE"),
            timeline_mark_cycles=seen.switch("TIMELINE_MARK_CYCLES"),
            stall_check=not seen.switch("STALL_CHECK_DISABLE"),
            stall_warning=seen.number("STALL_CHECK_TIME_SECONDS", standard.stall_warning),
            stall_shutdown=seen.number("STALL_SHUTDOWN_TIME_SECONDS", standard.stall_shutdown),
            log_level=seen.choice("LOG_LEVEL", _LEVELS, standard.log_level),
            dynamic_process_sets=seen.switch("DYNAMIC_PROCESS_SETS"),
            name=name,
        )


class _Variables:
    """HOROVOD_* by the rest of their names. An empty value is the same as none."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env

    def text(self, name: str) -> str:
        return self._env.get(f"HOROVOD_{name}", "").strip()

    def number(self, name: str, standard: float) -> float:
        text = self.text(name)
        try:
            value = float(text) if text else standard
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise self._refusal(name, "a number, zero or greater")
        return value

    def whole(self, name: str, standard: int) -> int:
        text = self.text(name)
        if text and not (text.isascii() and text.isdigit()):
            raise self._refusal(name, "a whole number, zero or greater")
        return int(text) if text else standard

    def switch(self, name: str) -> bool:
        text = self.text(name).lower()
        if text.isascii() and text.isdigit():
            return int(text) > 0
        if text not in (*_YES, *_NO):
            raise self._refusal(name, "0 or 1")
        return text in _YES

    def choice(self, name: str, choices: tuple[str, ...], standard: str) -> str:
        text = self.text(name).lower() or standard
        if text not in choices:
            raise self._refusal(name, f"one of {', '.join(choices)}")
        return text

    def _refusal(self, name: str, wanted: str) -> ValueError:
        return ValueError(f"HOROVOD_{name}={self.text(name)}: must be {wanted}.")
