"""Reads what Slurm's tools write. Pure; ValueError for what cannot be read.

Fields that are asked for by name (`squeue -o`, `sinfo -o`, `scontrol -o`) are the same from 20.11
to 25. What `--json` prints changes its form with every version, and `squeue --json` leaves its
filters out before 23.02.
"""

from __future__ import annotations

import re
from typing import Dict, List, NamedTuple, Optional, Tuple

from shanty.runtime.ranges import MOST_HOSTS, expand

UNKNOWN = ("", "N/A", "(null)", "NONE", "Unknown", "None", "n/a")


def hosts(text: str) -> List[str]:
    """The hosts of a node list, as in `n[1-3,07],gpu[01-02]-ib,login`."""
    found: List[str] = []
    for part in _split(text):
        found += expand(part)
        if len(found) > MOST_HOSTS:
            raise ValueError(f"{text[:60]!r} names too many hosts")
    return found


def _split(text: str) -> List[str]:
    """The parts of a node list at the commas outside of brackets."""
    parts, depth, begun = [], 0, ""
    for letter in text.strip():
        depth += {"[": 1, "]": -1}.get(letter, 0)
        if depth not in (0, 1):
            raise ValueError(f"{text!r} is not a list of nodes")
        if letter == "," and depth == 0:
            parts.append(begun)
            begun = ""
        else:
            begun += letter
    parts.append(begun)
    if depth or (len(parts) > 1 and not all(parts)):
        raise ValueError(f"{text!r} is not a list of nodes")
    return [part for part in parts if part]


def counts(text: str) -> List[int]:
    """A number for each node, as in SLURM_TASKS_PER_NODE: `2(x3),1`."""
    found: List[int] = []
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part.strip())
        if match is None:
            raise ValueError(f"{text!r} has no numbers of nodes")
        times = int(match[2] or 1)
        if len(found) + times > MOST_HOSTS:
            raise ValueError(f"{text!r} names too many nodes")
        found += [int(match[1])] * times
    return found


def seconds(text: str) -> Optional[float]:
    """A time of Slurm's: MINUTES, MINUTES:SECONDS, [DAYS-]HOURS[:MINUTES[:SECONDS]].

    None stands for no limit.
    """
    text = text.strip()
    if text.upper() in ("UNLIMITED", "INFINITE", "NOT_SET", *(each.upper() for each in UNKNOWN)):
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", text)
    if match is None:
        raise ValueError(f"{text!r} is not a time")
    numbers = [int(each) for each in match.groups()[1:] if each is not None]
    if match[1] is not None:  # with days, the first of the others is hours
        hours, minutes, rest = (*numbers, 0, 0)[:3]
        return ((int(match[1]) * 24 + hours) * 60 + minutes) * 60.0 + rest
    if len(numbers) == 3:
        return (numbers[0] * 60 + numbers[1]) * 60.0 + numbers[2]
    return numbers[0] * 60.0 + (numbers[1] if len(numbers) == 2 else 0)


def record(line: str) -> Dict[str, str]:
    """One line of `scontrol -o show …`: `Key=Value Key=Value with spaces Key=…`."""
    found: Dict[str, str] = {}
    name = ""
    for word in line.split(" "):
        key, equals, value = word.partition("=")
        if equals and re.fullmatch(r"[A-Za-z][\w/:.]*", key) and key not in found:
            name = key
            found[name] = value
        elif name:
            found[name] += f" {word}"
    return {key: value.strip() for key, value in found.items()}


def records(text: str) -> List[Dict[str, str]]:
    """All lines of `scontrol -o show …`."""
    return [record(line) for line in text.splitlines() if "=" in line]


def settings(text: str) -> Dict[str, str]:
    """What `scontrol show config` writes: `Key    = value` lines."""
    found = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            found[key.strip()] = value.strip()
    return found


def submitted(text: str) -> str:
    """The number of the job in the answer of `sbatch --parsable` (`12;cluster`), or without."""
    for line in reversed(text.strip().splitlines()):
        match = re.fullmatch(r"(\d+)(?:;\S*)?|Submitted batch job (\d+).*", line.strip())
        if match:
            return match[1] or match[2]
    raise ValueError(f"sbatch has named no job: {text.strip()!r}")


def version(text: str) -> Tuple[int, int]:
    """The version in `slurm 20.11.9` or `slurm-wlm 22.05.8`."""
    match = re.search(r"(\d+)\.(\d+)", text)
    if match is None:
        raise ValueError(f"{text.strip()!r} names no version of Slurm")
    return int(match[1]), int(match[2])


class Job(NamedTuple):
    """A job as `squeue` shows it; `started` is when it did, or is expected to, "" if unknown."""

    id: str
    state: str
    reason: str
    partition: str
    priority: int
    started: str
    nodes: str


JOB_FORMAT = "%i|%T|%P|%Q|%S|%N|%r"  # the reason last: it may hold whatever an admin wrote


def jobs(text: str) -> List[Job]:
    """The jobs that `squeue -h -o JOB_FORMAT` lists."""
    found = []
    for line in text.splitlines():
        words = line.strip().split("|", 6)
        if len(words) < 7 or not words[0]:
            continue
        number, state, partition, priority, started, nodes, reason = words
        started = "" if started in UNKNOWN else started
        value = int(priority) if priority.isdigit() else 0
        found.append(Job(number, state.upper(), reason, partition, value, started, nodes))
    return found


class NodeFacts(NamedTuple):
    """A node as `sinfo` shows it; `memory` is in MiB, `gpus` by their type ("" for all of them)."""

    name: str
    partition: str
    cpus: int
    memory: int
    gpus: int
    features: Tuple[str, ...]
    state: str


NODE_FORMAT = "%N|%P|%c|%m|%G|%f|%T"


def nodes(text: str) -> List[NodeFacts]:
    """The nodes that `sinfo -N -h -o NODE_FORMAT` lists, once for each of their partitions."""
    found = []
    for line in text.splitlines():
        words = line.strip().split("|")
        if len(words) != 7:
            continue
        name, partition, cpus, memory, gres, features, state = words
        features = "" if features in UNKNOWN else features
        found.append(
            NodeFacts(
                name,
                partition.rstrip("*"),
                number(cpus),
                number(memory),
                gpus(gres),
                tuple(each for each in features.split(",") if each),
                state.rstrip("*~#!%$@^-").lower(),
            )
        )
    return found


def number(text: str) -> int:
    """The number that a text begins with, as `64+` or `2:0:*:*`; 0 for none."""
    digits = re.match(r"\d+", text.strip())
    return int(digits[0]) if digits else 0


def gpus(gres: str) -> int:
    """How many GPUs there are in `gpu:a100:4(S:0-1),gpu:2,nvme:1`."""
    total = 0
    for part in re.sub(r"\([^)]*\)", "", gres).split(","):
        words = part.strip().split(":")
        if words[0] == "gpu":
            total += int(words[-1]) if words[-1].isdigit() else 1
    return total


def mpi_types(text: str) -> List[str]:
    """The kinds of PMI that `srun --mpi=list` names, in any version's words."""
    found = []
    for line in text.splitlines():
        line = re.sub(r"^(srun|slurmstepd)[\w-]*:\s*", "", line).strip()
        if line.lower().startswith("mpi plugin types are") or not line:
            continue
        line = line.partition("specific pmix plugin versions available:")[2] or line
        found += [word for word in re.split(r"[\s,]+", line) if re.fullmatch(r"[a-z][\w/]*", word)]
    return list(dict.fromkeys(found))
