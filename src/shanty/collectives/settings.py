"""The settings in Horovod's environment variables, read once by `init`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

MIB = 1 << 20
DYNAMIC = "DYNAMIC"
"""The value of HOROVOD_TIMELINE with which no timeline is written before `start_timeline`."""

_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


@dataclass(frozen=True, slots=True)
class Settings:
    """Horovod's settings as far as they have a meaning here; its other variables are ignored.

    fusion_threshold: bytes of tensors that are reduced together at most; 0 fuses nothing.
    cycle_time: seconds that small tensors wait for others to travel with, unless a caller waits;
        None if that is left to the negotiator.
    cache_capacity: how many requests the ranks know by a number, so that a cycle about them costs
        next to nothing; 0 turns that off.
    timeline: file that the timeline is written to from the start; "" for none, "DYNAMIC" for
        none before `start_timeline`.
    timeline_mark_cycles: whether it shows the cycles, too.
    stall_check: whether requests that not all ranks have made are reported.
    stall_warning: seconds after which they are.
    stall_shutdown: seconds after which they fail on all ranks; 0 for never.
    join_all: whether more than allreduces is done while ranks have joined.
    profile: what this host is called in the run's profile; "" without one.
    name: the front end's, for messages.
    """

    fusion_threshold: int = 128 * MIB
    cycle_time: float | None = None
    cache_capacity: int = 1024
    timeline: str = ""
    timeline_mark_cycles: bool = False
    stall_check: bool = True
    stall_warning: float = 60.0
    stall_shutdown: float = 0.0
    join_all: bool = False
    profile: str = ""
    name: str = "shanty"

    @classmethod
    def read(cls, env: Mapping[str, str] | None = None, name: str = "shanty") -> Self:
        """Read these variables; the process's own by default. name: the front end's.

        Raises ValueError, with the variable's name, for an invalid value.
        """
        env = os.environ if env is None else env
        found: dict[str, Any] = {}
        for field, (variable, read, wanted) in _VARIABLES.items():
            text = env.get(variable, "").strip()
            if text:
                try:
                    found[field] = read(text)
                except (ValueError, KeyError):
                    text = f"{variable}={text}: must be {wanted}."
                    raise ValueError(text) from None
        return cls(**found, name=name)


def _number(text: str) -> float:
    value = float(text)
    if not 0 <= value < math.inf:
        raise ValueError
    return value


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError
    return int(text)


def _switch(text: str) -> bool:
    if text.isascii() and text.isdigit():
        return int(text) > 0
    return _WORDS[text.lower()]


_NUMBER, _WHOLE = "a number, zero or greater", "a whole number, zero or greater"
_HOROVODS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    "fusion_threshold": ("FUSION_THRESHOLD", _whole, _WHOLE),
    "cycle_time": ("CYCLE_TIME", lambda text: _number(text) / 1000, _NUMBER),
    "cache_capacity": ("CACHE_CAPACITY", _whole, _WHOLE),
    "timeline": ("TIMELINE", str, ""),
    "timeline_mark_cycles": ("TIMELINE_MARK_CYCLES", _switch, "0 or 1"),
    "stall_check": ("STALL_CHECK_DISABLE", lambda text: not _switch(text), "0 or 1"),
    "stall_warning": ("STALL_CHECK_TIME_SECONDS", _number, _NUMBER),
    "stall_shutdown": ("STALL_SHUTDOWN_TIME_SECONDS", _number, _NUMBER),
}
# By the settings: a variable, how it is read, and what it must be. Empty is the same as unset.
_VARIABLES = {field: (f"HOROVOD_{each[0]}", *each[1:]) for field, each in _HOROVODS.items()}
_VARIABLES["profile"] = ("SHANTY_PROFILE", str, "")
_VARIABLES["join_all"] = ("SHANTY_JOIN_ALL", _switch, "0 or 1")
