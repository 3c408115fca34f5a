"""Tries from the lead pod of a run if it reaches the others: the verb `pods-reach`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Dict

from shanty.runtime.agent.connections import run_each
from shanty.runtime.rpc import Ask, Data, Say

_PATIENCE = 15.0  # seconds for all of them


def pods_reach(ask: Ask, _data: Data, _say: Say) -> Dict[str, Any]:
    """`pods`, each as [name, address, port]: `failed`, what keeps us from which of them."""
    boot = [sys.executable, "-I", "-S", str(Path(__file__).parent.parent / "boot.py")]
    pods = ask["pods"]
    calls = [[*boot, "kubernetes.dial", address, str(port), "true"] for _, address, port in pods]
    answers = run_each(calls, _PATIENCE)
    failed = {
        name: "no answer" if answer.code is None else answer.err.strip()
        for (name, _, _), answer in zip(pods, answers)
        if answer.code != 0
    }
    return {"failed": failed}
