"""What is wrong with a host, by what it said of itself; pure.

The numbers at which a finding begins stand here, each with its reason. Those that differ from MPI
to MPI are in `runtime/mpi/footprint.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shanty.launch.cluster.platforms import runs_on
from shanty.launch.doctor.disks import of_disks
from shanty.launch.doctor.facts import Need, Seen
from shanty.launch.doctor.limits import of_limits
from shanty.launch.doctor.parameters import of_settings
from shanty.launch.doctor.wording import amount, there
from shanty.launch.finding import Finding, Level

_FOREIGN_WRITE, _GROUP_WRITE = 0o002, 0o020
_SHOWN = 5


def of_host(seen: Seen, need: Need) -> Iterator[Finding]:
    """What is wrong with one host; with `seen.health` empty, what its survey alone shows.

    The order of the findings is that in which one would want to mend them.
    """
    yield from _machine(seen, need)
    yield from of_disks(seen, need)
    yield from of_limits(seen, need)
    yield from of_capacity(seen, need)
    yield from _programs(seen, need)
    if seen.health:
        yield from _rights(seen)
        yield from of_settings(seen, need)
        yield from _strays(seen)
        yield from _own_name(seen, need)


def clock(before: float, after: float, values: Mapping[str, Any]) -> tuple[float, float]:
    """By how much a host's clock is ahead, and the most by which that may be wrong; seconds.

    `values` is the answer of the verb `health`, asked for between `before` and `after` on the
    clock here.
    """
    travelled = max(0.0, after - before - float(values["took"]))
    return float(values["time"]) - (after - travelled / 2), travelled / 2


# ------------------------------------------------------------------------- the machine


def _machine(seen: Seen, need: Need) -> Iterator[Finding]:
    survey = seen.survey
    name, version = (*survey["libc"], "", "")[:2]
    kind = {
        "system": "macOS" if survey["system"] == "Darwin" else survey["system"],
        "architecture": survey["arch"],
        "glibc": version if name == "glibc" else "",
    }
    if not need.tags or runs_on(need.tags, kind):
        return
    wanted = " or ".join(need.tags)
    if not any(tag.endswith((f"_{survey['arch']}", "_universal2")) for tag in need.tags):
        yield Finding(
            "arch-differs",
            Level.ERROR,
            seen.name,
            f"its processors are {survey['arch']}, which the MPI of this machine is not built for",
            f"that is built for {wanted}",
            "take hosts of one kind, or install the same MPI on all by the system's packages and "
            "name it with --mpi",
        )
    else:
        yield Finding(
            "libc-old",
            Level.ERROR,
            seen.name,
            f"the MPI of this machine does not run with its C library, "
            f"{f'glibc {version}' if name == 'glibc' else 'which is not glibc'}",
            f"that is built for {wanted}",
            "take hosts with a newer system, or install the same MPI on all by the system's "
            "packages and name it with --mpi",
        )


# ---------------------------------------------------------------- what was asked of it


def of_capacity(seen: Seen, need: Need) -> Iterator[Finding]:
    """Whether the memory, the GPUs and the cores suffice for the ranks that it is to hold."""
    ranks = need.ranks.get(seen.name, 0)
    count = "1 rank" if ranks == 1 else f"{ranks} ranks"
    memory, cores = seen.survey["memory"], seen.survey["cores"]
    available = seen.survey["room"]["available"]
    wanted = ranks * need.memory
    short = memory and wanted > memory
    if short or (available is not None and wanted > available):
        yield Finding(
            "memory-short",
            Level.ERROR if short else Level.WARNING,
            seen.name,
            f"{count} with {amount(need.memory)} each do not fit into its memory"
            + ("" if short else ", as it is used now"),
            f"it has {amount(memory)}"
            + (f", of which {amount(available)} are free" if available is not None else ""),
            "take fewer ranks there (HOST:SLOTS in --on), or a smaller --memory-per-rank",
        )
    gpus = len(seen.survey["gpus"])
    if ranks * need.gpus > gpus:
        each = "a GPU" if need.gpus == 1 else f"{need.gpus} GPUs"
        yield Finding(
            "gpus-short",
            Level.ERROR,
            seen.name,
            f"it has fewer GPUs than {count} with {each} each take",
            f"nvidia-smi shows {gpus}",
            "take fewer ranks there (HOST:SLOTS in --on); if a GPU is missing, look at `dmesg` "
            "there for what became of it",
        )
    if ranks > cores and not need.oversubscribe:
        machine = seen.survey["machine_cores"]
        limited = f"; the machine has {machine}, of which a login may use {cores}"
        yield Finding(
            "slots-over-cores",
            Level.WARNING,
            seen.name,
            f"it is to hold {count}, and has {cores} {'core' if cores == 1 else 'cores'}",
            "ranks that share a core slow each other down" + (limited if machine > cores else ""),
            f"take {cores} slots there, or say --oversubscribe",
        )


def _programs(seen: Seen, need: Need) -> Iterator[Finding]:
    if len(need.hosts) > 1 and need.hosts[0] == seen.name and not seen.survey["ssh_program"]:
        yield Finding(
            "ssh-missing",
            Level.ERROR,
            seen.name,
            "it has no ssh, with which a lead host starts the others",
            f"there is none in {seen.survey['path']}",
            "install OpenSSH's client there (Debian, Ubuntu: openssh-client), or name another "
            "host first",
            there(seen.host, "sudo", "apt-get", "install", "openssh-client"),
        )


# ---------------------------------------------------------------- what its health says


def _rights(seen: Seen) -> Iterator[Finding]:
    for path, mode, owner in seen.health["rights"]:
        foreign = owner not in (0, seen.survey["uid"])
        if not foreign and not mode & (_FOREIGN_WRITE | _GROUP_WRITE):
            continue
        serious = foreign or bool(mode & _FOREIGN_WRITE)
        who = "another user owns" if foreign else "others may write"
        if not serious:
            who = "its group may write"
        yield Finding(
            "home-open",
            # many sites give a home to a group of one's own
            Level.WARNING if serious else Level.NOTE,
            seen.name,
            f"{who} {path}, so sshd may refuse every key of the user's there (StrictModes)",
            f"mode {mode:03o}, owner {owner}",
            f"chown it to the user: {path}" if foreign else f"chmod go-w {path}",
            "" if foreign else there(seen.host, "chmod", "go-w", path),
            fixable=not foreign,
        )
        return  # the first one counts: sshd looks from the top


def _strays(seen: Seen) -> Iterator[Finding]:
    strays = seen.health["strays"]
    if not strays:
        return
    pids = [str(each["pid"]) for each in strays]
    told = [f"{each['name']} (pid {each['pid']})" for each in strays[:_SHOWN]]
    more = ["…"] if len(strays) > _SHOWN else []
    count = "a process" if len(strays) == 1 else f"{len(strays)} processes"
    yield Finding(
        "strays",
        Level.WARNING,
        seen.name,
        f"{count} of a run that ended {'is' if len(strays) == 1 else 'are'} still there",
        ", ".join([*told, *more]),
        "end what is left, it may hold cores and ports",
        there(seen.host, "kill", *pids),
        fixable=any(each["run"] for each in strays),  # others' are not for shanty to end
    )


def _own_name(seen: Seen, need: Need) -> Iterator[Finding]:
    name = seen.health["hostname"]
    meant = seen.health["resolves"].get(name)
    if len(need.hosts) > 1 and meant and all(each.startswith(("127.", "::1")) for each in meant):
        yield Finding(
            "name-loopback",
            Level.NOTE,  # shanty goes by numbers
            seen.name,
            f"its own name {name} means {meant[0]} there, where no other host can reach it",
            f"{name} is {' and '.join(meant)} on it",
            "shanty goes by addresses; for other programs give the name the host's address in "
            "its /etc/hosts",
        )
