"""Finds what is wrong with one host, from the facts that it reported; pure.

The thresholds of findings are here, each with its reason. Those that differ between MPIs are in the
flavours of `runtime/mpi`.

Most harmful settings of MPIs are overridden by shanty's own and affect only what is started by
hand: a warning. Those that also break runs of shanty (`BREAKS`, each tested in a lab) are errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from shanty.launch.content.content_store import runs_on
from shanty.launch.doctor.facts import Need, Seen, amount, command_on
from shanty.launch.finding import Finding, Level
from shanty.launch.network.user_settings import named_interfaces
from shanty.runtime.counted import counted
from shanty.runtime.mpi.parameters import BREAKS, MEANINGS, plain

_FOREIGN_WRITE, _GROUP_WRITE = 0o002, 0o020
_SHOWN = 5
_MIB, _GIB = 1 << 20, 1 << 30
_DISK_NEEDED = 100 * _MIB  # an MPI (18 to 300 MB), the workspace and the logs have to fit
_DISK_SCARCE = _GIB  # an environment with a framework takes at least this
_INODES_NEEDED = 1000  # an MPI has up to 600 files; an environment 5,000 and more
_TMP_NEEDED = 32 * _MIB  # session files: Open MPI 4.1 takes 8 MiB, ranks take little
_TMP_INODES = 100
_SHM_CONTAINER = 64 * _MIB  # Docker's default
_UNWRITABLE = ("EROFS", "EACCES", "EPERM")
_TMP_FIXES = {
    "EROFS": "make it writable: mount -o remount,rw /tmp",
    "EACCES": "make it writable for all users: chmod 1777 /tmp",
}
_FULL = ("ENOSPC", "EDQUOT")
# A launcher's daemon has 5 to 6 descriptors per rank and 16 more (see runtime/mpi).
_FILES, _FILES_A_RANK = 48, 6
_FILES_SCARCE = 256  # a data loader with a few workers, or connections to many ranks
# The MPI of a rank has up to 3 threads; the agents, the launcher and ssh are about 20.
_PROCESSES, _PROCESSES_A_RANK = 20, 4
_PROCESSES_SCARCE, _SCARCE_A_RANK = 64, 16  # workers of data loaders, threads of libraries
_SPACE_SCARCE = 4 * _GIB  # address space: a framework maps gigabytes that it never uses
_LOCKED = 64 * _MIB  # the minimum that a fabric's driver registers for a rank
_RAISE_LIMIT = (
    "raise it in /etc/security/limits.conf (or Limit… of a systemd unit), or remove the `ulimit` "
    "from the login's profile"
)
_SSH = {"ssh", "rsh"}
_OVER_TCP = ("tcp", "tcp;ofi_rxm", "sockets", "net")
_NOT_BY_SSH = "the launcher does not start by ssh"


class HarmfulSetting(NamedTuple):
    """A setting that breaks runs, in `file`; "" for the environment."""

    name: str
    value: str
    file: str
    why: str
    level: Level


def of_host(seen: Seen, need: Need) -> Iterator[Finding]:
    """Finds what is wrong with one host; if `seen.health` is empty, from its survey alone.

    The findings are in the order in which one would fix them.
    """
    yield from _machine(seen, need)
    yield from _home_folder(seen, need)
    yield from _temporary(seen)
    yield from _shared_memory(seen, need)
    yield from _limits(seen, need)
    yield from of_capacity(seen, need)
    yield from _programs(seen, need)
    if seen.health:
        yield from _workarounds(seen)
        yield from _rights(seen)
        yield from _settings(seen, need)
        yield from _store(seen)
        yield from _orphans(seen)
        yield from _own_name(seen, need)


def clock(before: float, after: float, values: Mapping[str, Any]) -> tuple[float, float]:
    """Returns by how many seconds a host's clock is ahead, and the uncertainty in seconds.

    `values` is the answer of its verb `health` between `before` and `after` on the clock here.
    """
    travelled = max(0.0, after - before - float(values["took"]))
    return float(values["time"]) - (after - travelled / 2), travelled / 2


def _machine(seen: Seen, need: Need) -> Iterator[Finding]:
    survey = seen.survey
    name, version = (*survey["libc"], "", "")[:2]
    kind = {
        "system": "macOS" if survey["system"] == "Darwin" else survey["system"],
        "architecture": survey["arch"],
        "glibc": version if name == "glibc" else "",
    }
    if need.contained or not need.tags or runs_on(need.tags, kind):
        return
    code, others = "arch-differs", "of one kind"
    what = f"the MPI of this machine is not built for its processors ({survey['arch']})"
    if any(tag.endswith((f"_{survey['arch']}", "_universal2")) for tag in need.tags):
        code, others = "libc-old", "with a newer system"
        library = f"glibc {version}" if name == "glibc" else "which is not glibc"
        what = f"the MPI of this machine does not run with its C library, {library}"
    yield seen.error(
        code,
        what,
        f"that is built for {' or '.join(need.tags)}",
        f"take hosts {others}, or install the same MPI on all hosts as a system package and "
        "select it with --mpi",
    )


def _home_folder(seen: Seen, need: Need) -> Iterator[Finding]:
    folders = seen.survey["room"]["folders"]
    found = _home_disk(seen, folders["shanty"])
    # If the home is on another disk than shanty's folder, it only needs room for keys.
    if found is None and len(need.hosts) > 1 and folders["home"]["error"]:
        found = _home_disk(seen, folders["home"])
    if found is not None:
        yield found


def _home_disk(seen: Seen, folder: Mapping[str, Any]) -> Finding | None:
    path, error = folder["path"], folder["error"]
    free, inodes = folder.get("free"), folder.get("inodes_free")
    if folder.get("readonly") or error in _UNWRITABLE:
        return seen.error(
            "home-readonly",
            "nothing can be written in its home",
            f"{path}: {'mounted read-only' if folder.get('readonly') else error}",
            f"make {path} writable for the user, or set SHANTY_HOME for the logins there to a "
            "writable folder",
        )
    if folder.get("noexec"):
        return seen.error(
            "home-noexec",
            f"programs on the disk of {path} cannot be executed, so neither an MPI nor a Python "
            "environment works there",
            "the mount has the flag noexec",
            "set SHANTY_HOME there to a folder on another disk, or mount it with exec",
        )
    if inodes is not None and inodes < _INODES_NEEDED:
        return seen.error(
            "inodes-full",
            "the disk of its home has no inodes left, so files cannot be created",
            f"{path}: {inodes} inodes free of {folder['inodes']}",
            "remove files there: `du --inodes -xd2 ~ | sort -n` shows where they are",
            command_on(seen.host, "sh", "-c", "du --inodes -xd2 ~ | sort -n | tail"),
            fixable=True,
        )
    full = error in _FULL or (free is not None and free < _DISK_NEEDED)
    if full or (free is not None and free < _DISK_SCARCE):
        return seen.finding(
            Level.ERROR if full else Level.WARNING,
            "disk-full",
            f"the disk of its home is {'' if full else 'nearly '}full",
            f"{path}: {amount(free or 0)} free" + (f", writing gives {error}" if error else ""),
            "remove files that you do not need there: `du -xhd2 ~ | sort -h` shows large folders",
            command_on(seen.host, "sh", "-c", "du -xhd2 ~ | sort -h | tail"),
            fixable=True,
        )
    if error:
        what = "nothing can be written in its home"
        return seen.error("home-readonly", what, f"{path}: {error}", "check its disk")
    return None


def _temporary(seen: Seen) -> Iterator[Finding]:
    folders = seen.survey["room"]["folders"]
    folder = folders["tmp"]
    error, free, inodes = folder["error"], folder.get("free"), folder.get("inodes_free")
    same = folder.get("device") == folders["shanty"].get("device")
    scarce = (free is not None and free < _TMP_NEEDED) or (
        inodes is not None and inodes < _TMP_INODES
    )
    if error in _UNWRITABLE or ((error or scarce) and not same):
        room = (
            f"{amount(free or 0)} and {'any number of' if inodes is None else inodes} inodes free"
        )
        yield seen.error(
            "tmp-full",
            "/tmp cannot be written" if error in _UNWRITABLE else "/tmp is full",
            f"{room}, writing gives {error}" if error else room,
            _TMP_FIXES.get(error)
            or "remove files that you do not need in /tmp" + _leftovers(seen, "/tmp"),
            fixable="/tmp" in seen.health.get("leftovers", {}),
        )
    if folder.get("noexec"):
        yield seen.warning(
            "tmp-noexec",  # shanty starts nothing from there, but frameworks compile there
            "/tmp is mounted noexec, so code that is compiled there at run time cannot be loaded",
            "the mount has the flag noexec",
            "mount it with exec, or set TMPDIR for the ranks to a folder in the home (-e TMPDIR=…)",
            command_on(seen.host, "sudo", "mount", "-o", "remount,exec", "/tmp"),
        )


def _leftovers(seen: Seen, folder: str) -> str:
    left = seen.health.get("leftovers", {}).get(folder)
    if not left:
        return ""
    files = "a file" if left["count"] == 1 else f"{left['count']} files"
    return f"; {files} of ended MPI jobs take {amount(left['bytes'])} there"


def _shared_memory(seen: Seen, need: Need) -> Iterator[Finding]:
    folder = seen.survey["room"]["folders"].get("shm")
    if folder is None or "size" not in folder or need.contained:
        return
    ranks = max(1, need.ranks.get(seen.name, 1))
    wanted = need.footprint.shared_memory(ranks)
    size, free = folder["size"], folder["free"]
    level = Level.ERROR if need.footprint.vital else Level.WARNING
    count = "1 rank needs" if ranks == 1 else f"{ranks} ranks need"
    bigger = "make it larger: mount -o remount,size=4G /dev/shm; in a container, --shm-size=4g"
    if size and size < wanted:
        yield seen.finding(
            level,
            "shm-small",
            "/dev/shm is too small for the ranks' shared memory",
            f"it has {amount(size)}, {count} {amount(wanted)}",
            bigger,
            command_on(seen.host, "sudo", "mount", "-o", "remount,size=4G", "/dev/shm"),
        )
    elif folder["error"] or (size and free < wanted):
        yield seen.finding(
            Level.ERROR if folder["error"] or free < _MIB else level,
            "shm-full",
            "/dev/shm cannot be written" if folder["error"] in _UNWRITABLE else "/dev/shm is full",
            f"{amount(free)} free of {amount(size)}, {count} {amount(wanted)}",
            "remove files that you do not need there" + _leftovers(seen, "/dev/shm"),
            command_on(seen.host, "ls", "-lS", "/dev/shm"),
            fixable="/dev/shm" in seen.health.get("leftovers", {}),
        )
    elif 0 < size <= _SHM_CONTAINER:
        yield seen.finding(
            Level.NOTE,
            "shm-small",
            "/dev/shm is as small as in a container",
            f"it has {amount(size)}; the workers of PyTorch's DataLoader pass batches through it",
            bigger,
        )


def _limits(seen: Seen, need: Need) -> Iterator[Finding]:
    room = seen.survey["room"]
    ranks = max(1, need.ranks.get(seen.name, 1))
    soft = {name: (limit or [None])[0] for name, limit in room["limits"].items()}
    needed = _FILES + ranks * _FILES_A_RANK
    limit = soft["NOFILE"]
    if limit is not None and limit < max(needed, _FILES_SCARCE):
        hard = room["limits"]["NOFILE"][1]
        more = "" if hard is None or hard > limit else f", and the user cannot raise it ({hard})"
        yield seen.finding(
            Level.ERROR if limit < needed else Level.WARNING,
            "files-limit",
            f"a process may open only {limit} files",
            f"ulimit -n is {limit}{more}; {ranks} ranks need {needed}, and those of the script",
            _RAISE_LIMIT,
        )
    needed = _PROCESSES + ranks * _PROCESSES_A_RANK
    limit, used = soft["NPROC"], room["processes"]
    left = None if limit is None else limit - (used or 0)
    if left is not None and left < _PROCESSES_SCARCE + ranks * _SCARCE_A_RANK:
        counted = "" if used is None else f", and {used} are running"
        yield seen.finding(
            Level.ERROR if left < needed and not room["privileged"] else Level.WARNING,
            "processes-limit",
            f"the user may have only {limit} processes and threads",
            f"ulimit -u is {limit}{counted}; {ranks} ranks need at least {needed}",
            _RAISE_LIMIT,
        )
    needed = need.footprint.address_space + need.memory
    for name, flag in (("AS", "-v"), ("DATA", "-d")):
        limit = soft[name]
        if limit is not None and limit < max(needed, _SPACE_SCARCE):
            yield seen.finding(
                Level.ERROR if limit < needed else Level.WARNING,
                "memory-limit",
                f"a process may use only {limit >> 20} MiB of memory",
                f"ulimit {flag} is {limit >> 10} (KiB); a rank needs at least {needed >> 20} MiB",
                _RAISE_LIMIT,
            )
            return
    locked = soft["MEMLOCK"]
    if seen.survey["fabrics"] and locked is not None and locked < _LOCKED:
        yield seen.warning(
            "memory-limit",
            f"a process may lock only {locked >> 10} KiB of memory: too little for a fast network",
            f"ulimit -l is {locked >> 10} (KiB); the host has {', '.join(seen.survey['fabrics'])}",
            "set memlock to unlimited in /etc/security/limits.conf",
        )


def of_capacity(seen: Seen, need: Need) -> Iterator[Finding]:
    """Checks that memory, GPUs and cores suffice for the ranks on the host."""
    ranks = need.ranks.get(seen.name, 0)
    count = "1 rank" if ranks == 1 else f"{ranks} ranks"
    memory, cores = seen.survey["memory"], seen.survey["cores"]
    available = seen.survey["room"]["available"]
    wanted = ranks * need.memory
    short = memory and wanted > memory
    if short or (available is not None and wanted > available):
        yield seen.finding(
            Level.ERROR if short else Level.WARNING,
            "memory-short",
            f"{count} with {amount(need.memory)} each do not fit into its "
            + ("memory" if short else "free memory"),
            f"it has {amount(memory)}"
            + (f", of which {amount(available)} are free" if available is not None else ""),
            "take fewer ranks there (HOST:SLOTS in --on), or a smaller --memory-per-rank",
        )
    gpus = len(seen.survey["gpus"])
    if ranks * need.gpus > gpus:
        each = "a GPU" if need.gpus == 1 else f"{need.gpus} GPUs"
        yield seen.error(
            "gpus-short",
            f"it has fewer GPUs than {count} with {each} each need",
            f"nvidia-smi shows {gpus}",
            "take fewer ranks there (HOST:SLOTS in --on); if a GPU is missing, see `dmesg` there",
        )
    if ranks > cores and not need.oversubscribe:
        machine = seen.survey["machine_cores"]
        limited = f"; the machine has {machine}, of which a login may use {cores}"
        yield seen.warning(
            "slots-over-cores",
            f"it gets {count}, and has {counted(cores, 'core')}",
            "ranks that share a core slow each other down" + (limited if machine > cores else ""),
            f"take {counted(cores, 'slot')} there, or give --oversubscribe",
        )


def _programs(seen: Seen, need: Need) -> Iterator[Finding]:
    if len(need.hosts) > 1 and need.hosts[0] == seen.name and not seen.survey["ssh_program"]:
        yield seen.error(
            "ssh-missing",
            "it has no ssh, which a lead host needs to reach the others",
            f"it is not in {seen.survey['path']}",
            "install OpenSSH's client there (Debian, Ubuntu: openssh-client), or name another "
            "host first",
            command_on(seen.host, "sudo", "apt-get", "install", "openssh-client"),
        )


def _workarounds(seen: Seen) -> Iterator[Finding]:
    for what, fix in seen.client.notes if seen.client is not None else ():
        yield seen.finding(Level.NOTE, "workaround", what, "", fix)


def _rights(seen: Seen) -> Iterator[Finding]:
    for path, mode, owner in seen.health["rights"]:
        foreign = owner not in (0, seen.survey["uid"])
        if not foreign and not mode & (_FOREIGN_WRITE | _GROUP_WRITE):
            continue
        level, who = Level.WARNING, "another user owns" if foreign else "others may write"
        if not foreign and not mode & _FOREIGN_WRITE:
            # many systems have a group for each user
            level, who = Level.NOTE, "its group may write"
        yield seen.finding(
            level,
            "home-open",
            f"{who} {path}, so sshd may refuse the user's keys there (StrictModes)",
            f"mode {mode:03o}, owner {owner}",
            f"chown it to the user: {path}" if foreign else f"chmod go-w {path}",
            "" if foreign else command_on(seen.host, "chmod", "go-w", path),
            fixable=not foreign,
        )
        return  # the first one counts: sshd looks from the top


def _store(seen: Seen) -> Iterator[Finding]:
    damaged = seen.health.get("damaged", {})
    if damaged:
        yield seen.warning(
            "store-damaged",
            "files that shanty keeps there are missing or have changed",
            "; ".join(f"{files} of {path}" for path, files in damaged.items()),
            "remove the damaged folder: the next run sends it again",
            command_on(seen.host, "rm", "-r", *damaged),
            fixable=True,
        )


def _orphans(seen: Seen) -> Iterator[Finding]:
    containers = seen.health.get("containers", ())
    if containers:
        yield seen.warning(
            "strays",
            f"{'a container' if len(containers) == 1 else f'{len(containers)} containers'} of runs "
            "that ended still exist",
            ", ".join([*containers[:_SHOWN], *["…"] * (len(containers) > _SHOWN)]),
            "remove what is left",
            fixable=True,
        )
    orphans = seen.health["orphans"]
    crashed = seen.health.get("crashed", ())
    if crashed and not orphans:
        who = "a run that crashed" if len(crashed) == 1 else f"{len(crashed)} runs that crashed"
        yield seen.warning(
            "strays",
            f"{who} left files, and maybe a node agent that is stopped",
            ", ".join([*crashed[:_SHOWN], *["…"] * (len(crashed) > _SHOWN)]),
            "remove what is left; the next run there does so as well",
            fixable=True,
        )
    if not orphans:
        return
    listed = [f"{each['name']} (pid {each['pid']})" for each in orphans[:_SHOWN]]
    one = len(orphans) == 1
    yield seen.warning(
        "strays",
        f"{'a process' if one else f'{len(orphans)} processes'} of a run that ended "
        f"{'is' if one else 'are'} still running",
        ", ".join([*listed, *["…"] * (len(orphans) > _SHOWN)]),
        "end what is left; it may use cores and ports",
        command_on(seen.host, "kill", *(str(each["pid"]) for each in orphans)),
        fixable=any(each["run"] for each in orphans),  # shanty does not end other processes
    )


def _own_name(seen: Seen, need: Need) -> Iterator[Finding]:
    name = seen.health["hostname"]
    meant = seen.health["resolves"].get(name)
    if len(need.hosts) > 1 and meant and all(each.startswith(("127.", "::1")) for each in meant):
        yield seen.finding(
            Level.NOTE,  # shanty connects to numeric addresses
            "name-loopback",
            f"its own name {name} resolves to {meant[0]} there, where other hosts cannot reach it",
            f"{name} is {' and '.join(meant)} on it",
            "shanty uses addresses; for other programs give the name the host's address in its "
            "/etc/hosts",
        )


def _settings(seen: Seen, need: Need) -> Iterator[Finding]:
    """Makes a finding for each setting of a host that breaks runs."""
    home = f"{seen.survey['home'].rstrip('/')}/"
    for name, value, file, why, level in harmful(seen, need):
        where = file or "the environment of a login"
        yield seen.finding(
            level,
            "mpi-parameters",
            f"{where} sets {name} = {value}: {why}",
            f"{name} = {value}",
            f"remove that line from {where}" if file else f"unset {name} for logins",
            fixable=file.startswith(home),
        )


def harmful(seen: Seen, need: Need) -> Iterator[HarmfulSetting]:
    """Returns the settings of a host that break runs, by its health."""
    several, lead = len(need.hosts) > 1, need.hosts[:1] in ((), (seen.name,))
    for name, value, file in seen.health["settings"]:
        meaning = MEANINGS.get(plain(name), "")
        # A launcher that finds no such interface does not start, not even on one host.
        matters = several or meaning == "launcher's interfaces"
        if meaning and matters and value.strip():
            why = _why(meaning, value, seen.survey, lead=lead)
            about = BREAKS.get(plain(name), ())
            serious = need.flavour in about or (about and not need.flavour)
            if why:
                level = Level.ERROR if serious else Level.WARNING
                yield HarmfulSetting(name, value, file, why, level)


def _why(meaning: str, value: str, survey: Mapping[str, Any], *, lead: bool) -> str:
    """Returns why a value is harmful, from the meaning of the setting; "" if it is not."""
    excluded = value.startswith("^")  # all but these
    listed = _words(value.lstrip("^"))
    has_tcp, fabrics = "tcp" in listed, survey["fabrics"]
    match meaning:
        case "excluded interfaces":
            # Open MPI does not accept a list of wanted interfaces with it, so shanty sets none.
            return (
                "shanty cannot choose the network there, and Open MPI takes all that is not in "
                "the list"
            )
        case "Open MPI's transports":
            if excluded:
                return "it excludes tcp, so hosts cannot reach each other" if has_tcp else ""
            if not has_tcp and not (fabrics and {"openib", "uct", "ofi"} & set(listed)):
                return "tcp is not in the list, so hosts cannot reach each other"
        case "Intel MPI's transports":
            if value.strip().lower() in ("shm", "shm:shm"):
                return "shared memory alone does not reach other hosts"
        case "libfabric's provider":
            words = [word.lower() for word in _words(value)]
            if not (fabrics or excluded or any(w.startswith(_OVER_TCP) for w in words)):
                return f"the host has no network for {' or '.join(words)}, only TCP"
        case "UCX's transports":
            if not fabrics and excluded and has_tcp:
                return "it excludes tcp"
            if not (fabrics or excluded or has_tcp or "all" in listed):
                return "tcp is not in the list, and the host has no other network"
        case "launcher's way":
            if lead and not excluded and not _SSH & set(listed):
                return _NOT_BY_SSH
        case "ssh program":  # in a run over hosts that has to be shanty's
            programs = {choice.split()[0] for choice in value.split(":") if choice.split()}
            if lead and not _SSH & programs:
                return _NOT_BY_SSH
        case _:  # interfaces
            if named_interfaces(value, meaning, survey["addresses"]) == set():
                return f"the host has no interface {' or '.join(_words(value.lstrip('=')))}"
    return ""


def _words(value: str) -> list[str]:
    return [word.strip() for word in value.split(",") if word.strip()]
