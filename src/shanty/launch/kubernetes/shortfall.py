"""Says in numbers what a pod that finds no node lacks: what it asks for, and what nodes have free.

Pure. Quantities are those of
https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

Object = Mapping[str, Any]

_UNITS = {"": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
          "P": 1e15, "E": 1e18, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
          "Pi": 2.0**50, "Ei": 2.0**60}  # fmt: skip
_NAMES = {"cpu": "CPU", "memory": "memory"}
_SHOWN = 8  # nodes


def quantity(text: Any) -> float:
    """Read a quantity: 500m, 2, 1.5Gi, 12e6."""
    found = re.fullmatch(r"([+-]?[\d.]+(?:[eE][+-]?\d+)?)([A-Za-z]*)", str(text).strip())
    if not found or found[2] not in _UNITS:
        raise ValueError(f"{text!r} is not a quantity")
    return float(found[1]) * _UNITS[found[2]]


def requests_of(pod: Object) -> dict[str, float]:
    """What a pod asks for; init containers, which run before the others, count by the largest."""
    spec = pod["spec"]
    total: dict[str, float] = {}
    for container in spec.get("containers", ()):
        for name, value in _asked(container).items():
            total[name] = total.get(name, 0.0) + value
    for container in spec.get("initContainers") or ():
        for name, value in _asked(container).items():
            total[name] = max(total.get(name, 0.0), value)
    for name, value in (spec.get("overhead") or {}).items():
        total[name] = total.get(name, 0.0) + quantity(value)
    return total


def _asked(container: Object) -> dict[str, float]:
    resources = container.get("resources") or {}
    given = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(value) for name, value in given.items()}


def free(nodes: Sequence[Object], pods: Sequence[Object]) -> dict[str, dict[str, float]]:
    """What each node that takes pods has left, by its name, of what it has to give."""
    left = {
        node["metadata"]["name"]: {
            name: quantity(value) for name, value in node["status"]["allocatable"].items()
        }
        for node in nodes
        if not node["spec"].get("unschedulable")
    }
    for pod in pods:
        node = pod["spec"].get("nodeName")
        if node in left and pod.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            for name, value in requests_of(pod).items():
                left[node][name] = left[node].get(name, 0.0) - value
    return left


def described(pod: Object, nodes: Sequence[Object], pods: Sequence[Object]) -> str:
    """What the pod needs and no node has: "needs 2 CPU: node a has 1.2 free, b 0.5"."""
    needs, left = requests_of(pod), free(nodes, pods)
    short = [
        name
        for name, value in needs.items()
        if not any(node.get(name, 0.0) >= value for node in left.values())
    ]
    if not short or not left:
        return ""
    words = []
    for name in short:
        most = sorted(left.items(), key=lambda item: -item[1].get(name, 0.0))[:_SHOWN]
        (first, its), *others = most
        have = f"node {first} has {_shown(name, its.get(name, 0.0))} free"
        have += "".join(f", {node} {_shown(name, has.get(name, 0.0))}" for node, has in others)
        more = f", {len(left) - _SHOWN} more have less" if len(left) > _SHOWN else ""
        words.append(f"needs {_shown(name, needs[name])} {_NAMES.get(name, name)}: {have}{more}")
    return "; ".join(words)


def _shown(name: str, value: float) -> str:
    if name in ("memory", "ephemeral-storage"):
        return f"{value / 2**30:.3g} GiB"
    return f"{max(0.0, value):.3g}"
