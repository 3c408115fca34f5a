"""Compares a request with what the cluster has, before it is queued. Pure.

Slurm accepts many requests that can never be met, and lets them wait indefinitely.
"""

from __future__ import annotations

import contextlib
from typing import Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence

from shanty.runtime.errors import UsageError
from shanty.runtime.slurm import parse
from shanty.runtime.slurm.sbatch_options import Request
from shanty.runtime.suggestions import nearest

MIB = 1 << 20
_NO_LIMIT = ("UNLIMITED", "INFINITE", "NONE", "N/A", "(null)", "")


class Partition(NamedTuple):
    """A partition: its limits (None: none), and its nodes."""

    name: str
    default: bool
    up: bool
    seconds: Optional[float]
    most_nodes: Optional[int]
    accounts: Sequence[str]  # that may use it; empty: all
    denied: Sequence[str]
    qos: Sequence[str]
    nodes: Sequence[parse.NodeFacts]
    usual: Optional[float] = None  # seconds that a job gets which asks for none


def partitions(
    records: Iterable[Mapping[str, str]], nodes: Iterable[parse.NodeFacts]
) -> Dict[str, Partition]:
    """The partitions, of what `scontrol` and `sinfo` say."""
    own: Dict[str, List[parse.NodeFacts]] = {}
    for node in nodes:
        own.setdefault(node.partition, []).append(node)
    found = {}
    for values in records:
        name = values.get("PartitionName", "")
        if not name:
            continue
        try:
            seconds = parse.seconds(values.get("MaxTime", ""))
        except ValueError:
            seconds = None
        usual = seconds
        with contextlib.suppress(ValueError):
            usual = parse.seconds(values.get("DefaultTime", "")) or seconds
        most = values.get("MaxNodes", "")
        found[name] = Partition(
            name=name,
            default=values.get("Default", "").upper() == "YES",
            up=values.get("State", "UP").upper() == "UP",
            seconds=seconds,
            most_nodes=int(most) if most.isdigit() else None,
            accounts=_names(values.get("AllowAccounts", "ALL")),
            denied=_names(values.get("DenyAccounts", "")),
            qos=_names(values.get("AllowQos", "ALL")),
            nodes=own.get(name, []),
            usual=usual,
        )
    return found


def _names(text: str) -> List[str]:
    return [] if text.upper() in ("ALL", *_NO_LIMIT) else [each for each in text.split(",") if each]


def limit_of(request: Request, known: Mapping[str, Partition]) -> Optional[float]:
    """The seconds that a job without a time of its own may take; None for no limit."""
    names = [each for each in request.partition.split(",") if each]
    wanted = [known[each] for each in names if each in known]
    wanted = wanted or [each for each in known.values() if each.default]
    limits = [each.usual for each in wanted if each.usual is not None]
    return min(limits, default=None)


def check(request: Request, known: Mapping[str, Partition]) -> None:
    """Raise UsageError for what can never be met.

    Whether the user may charge the account, by this QOS, is what `sbatch --test-only` knows.
    """
    names = [each for each in request.partition.split(",") if each]
    for name in names:
        if name not in known:
            raise UsageError(
                f"partition {name!r} not found",
                f"the cluster has {_listed(known)}",
                _near(name, list(known)) or "name one of them with --partition",
            )
    wanted = [known[name] for name in names] or [each for each in known.values() if each.default]
    troubles = [_trouble(request, each) for each in wanted]
    if wanted and all(troubles):
        first = troubles[0]
        assert first is not None
        raise first


def _listed(known: Iterable[str]) -> str:
    names = list(known)
    return ", ".join(names[:12]) + (f" and {len(names) - 12} more" if len(names) > 12 else "")


def _near(name: str, known: Sequence[str]) -> str:
    return nearest(name, known, cutoff=0.5)


def _trouble(request: Request, partition: Partition) -> Optional[UsageError]:
    """Why the request can never be met in a partition; None where it can."""
    name = partition.name
    limit = partition.seconds
    if request.minutes is not None and limit is not None and request.minutes * 60 > limit:
        return UsageError(
            f"{request.minutes} minutes are more than the partition {name} allows",
            f"its limit is {_minutes(limit)}",
            f"take --time-limit {_minutes(limit).split()[0]}m, or another --partition",
        )
    if request.account and (
        (partition.accounts and request.account not in partition.accounts)
        or request.account in partition.denied
    ):
        allowed = _listed(partition.accounts) if partition.accounts else "others"
        return UsageError(
            f"the partition {name} does not take jobs of the account {request.account}",
            f"it takes those of {allowed}",
            _near(request.account, list(partition.accounts)) or "take another --partition",
        )
    if request.qos and partition.qos and request.qos not in partition.qos:
        return UsageError(
            f"the partition {name} does not take jobs of the QOS {request.qos}",
            f"it takes {_listed(partition.qos)}",
            _near(request.qos, list(partition.qos)) or "take another --partition",
        )
    if not partition.nodes:
        return None  # nothing is known of them
    return _of_nodes(request, partition)


def _minutes(seconds: float) -> str:
    whole = int(seconds // 60)
    return f"{whole} minute" + ("" if whole == 1 else "s")


def _of_nodes(request: Request, partition: Partition) -> Optional[UsageError]:
    name, nodes = partition.name, list(partition.nodes)
    most = partition.most_nodes or len(nodes)
    wanted = request.least_nodes
    if wanted > min(most, len(nodes)):
        fewer = min(most, len(nodes))
        limit = "allows a job" if most < len(nodes) else "has"
        return UsageError(
            f"{wanted} nodes are too many: the partition {name} {limit} {fewer}",
            "Slurm would let the job wait indefinitely",
            f"take --nodes {fewer} at most, or another --partition",
        )
    if request.constraint.replace("_", "").replace("-", "").isalnum():  # no expression of many
        fitting = [node for node in nodes if request.constraint in node.features]
        features = sorted({each for node in nodes for each in node.features})
        if not fitting:
            return UsageError(
                f"no node of the partition {name} has the feature {request.constraint!r}",
                f"they have {_listed(features)}" if features else "they have none",
                _near(request.constraint, features) or "leave --constraint out",
            )
        nodes = fitting
    ranks = request.ranks_on_one
    for what, each, sizes, unit in (
        ("CPUs", request.cpus, [node.cpus for node in nodes], ""),
        ("memory", -(-(request.memory or 0) // MIB), [node.memory for node in nodes], " MiB"),
        ("GPUs", request.gpus, [node.gpus for node in nodes], ""),
    ):
        largest = max(sizes)
        if each * ranks > largest:
            many = f"{ranks} ranks with {each}{unit} each" if ranks > 1 else f"{each}{unit} a rank"
            return UsageError(
                f"no node has that many {what}: {many}"
                if what != "memory"
                else f"no node has that much memory: {many}",
                f"the largest of the partition {name} has {largest}{unit}",
                "ask for less a rank, for fewer ranks on a node, or take another --partition",
            )
        if request.tasks is not None and each:
            used = sorted((size // each for size in sizes), reverse=True)[: request.nodes or most]
            if request.per_node is not None:
                used = [min(size, request.per_node) for size in used]
            if sum(used) < request.tasks:
                over = f"{len(used)} nodes" if len(used) > 1 else "a node"
                return UsageError(
                    f"{request.tasks} ranks with {each}{unit} of {what} each are too many",
                    f"{over} of the partition {name} can take {sum(used)}",
                    f"take -n {sum(used)}, less for each rank, or another --partition",
                )
    return None
