"""Tells which GPUs a host has, by nvidia-smi."""

from __future__ import annotations

import os
import shutil
from typing import Dict, List

_TIMEOUT = 5.0  # seconds; a sick driver makes nvidia-smi hang


def gpus() -> List[Dict[str, str]]:
    """NVIDIA's GPUs, `{"name", "uuid"}` each, in their order; none where nothing answers."""
    from shanty.runtime.programs import output_of  # most hosts are asked once, if at all

    words = [shutil.which("nvidia-smi") or "/usr/bin/nvidia-smi", "-L"]
    return parse_gpus(output_of(words, _TIMEOUT) or "")


def visible_gpus() -> int:
    """Returns how many of them a process here may see."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return len(gpus())
    return len([each for each in visible.split(",") if each.strip() not in ("", "-1")])


def parse_gpus(text: str) -> List[Dict[str, str]]:
    """Read the output of `nvidia-smi -L`; the parts of a divided GPU (MIG) do not count."""
    found = []
    for line in text.splitlines():
        if line.startswith("GPU "):
            name, _, rest = line.partition(": ")[2].rpartition(" (UUID: ")
            found.append({"name": name.strip(), "uuid": rest.rstrip(") ")})
    return found
