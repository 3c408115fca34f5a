"""What is wrong with the disks of a host: its home, /tmp, /dev/shm; pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shanty.launch.doctor.facts import Need, Seen
from shanty.launch.doctor.wording import amount, there
from shanty.launch.finding import Finding, Level

_MIB, _GIB = 1 << 20, 1 << 30
_DISK_NEEDED = 100 * _MIB  # an MPI (18 to 300 MB), the workspace and the logs have to fit
_DISK_SCARCE = _GIB  # an environment with a framework takes this and more
_INODES_NEEDED = 1000  # an MPI has up to 600 files; an environment 5,000 and more
_TMP_NEEDED = 32 * _MIB  # session files: Open MPI 4.1 takes 8 MiB, the ranks' own are few
_TMP_INODES = 100
_SHM_CONTAINER = 64 * _MIB  # what Docker gives by itself
_UNWRITABLE = ("EROFS", "EACCES", "EPERM")
_FULL = ("ENOSPC", "EDQUOT")


def of_disks(seen: Seen, need: Need) -> Iterator[Finding]:
    """What is wrong with where a run writes on this host."""
    yield from _home(seen, need)
    yield from _temporary(seen)
    yield from _shared_memory(seen, need)


def _home(seen: Seen, need: Need) -> Iterator[Finding]:
    folders = seen.survey["room"]["folders"]
    places = [folders["shanty"]]
    # The home itself, where it is on another disk, only takes the keys that runs let in.
    if len(need.hosts) > 1 and folders["home"]["error"]:
        places.append(folders["home"])
    for folder in places:
        found = _disk(seen, folder)
        if found is not None:
            yield found
            return


def _disk(seen: Seen, folder: Mapping[str, Any]) -> Finding | None:
    path, error = folder["path"], folder["error"]
    free, inodes = folder.get("free"), folder.get("inodes_free")
    if folder.get("readonly") or error in _UNWRITABLE:
        return Finding(
            "home-readonly",
            Level.ERROR,
            seen.name,
            "nothing can be written in its home",
            f"{path}: {'mounted read-only' if folder.get('readonly') else error}",
            f"let the user write {path}, or set SHANTY_HOME for the logins there to a folder "
            "that can be written",
        )
    if inodes is not None and inodes < _INODES_NEEDED:
        return Finding(
            "inodes-full",
            Level.ERROR,
            seen.name,
            "the disk of its home has no inodes left, so no new files can be made",
            f"{path}: {inodes} inodes free of {folder['inodes']}",
            "remove files there: `du --inodes -xd2 ~ | sort -n` shows where they are",
            there(seen.host, "sh", "-c", "du --inodes -xd2 ~ | sort -n | tail"),
            fixable=True,
        )
    full = error in _FULL or (free is not None and free < _DISK_NEEDED)
    if full or (free is not None and free < _DISK_SCARCE):
        return Finding(
            "disk-full",
            Level.ERROR if full else Level.WARNING,
            seen.name,
            f"the disk of its home is {'' if full else 'nearly '}full",
            f"{path}: {amount(free or 0)} free" + (f", writing gives {error}" if error else ""),
            "remove what is not needed there: `du -xhd2 ~ | sort -h` shows what is large",
            there(seen.host, "sh", "-c", "du -xhd2 ~ | sort -h | tail"),
            fixable=True,
        )
    if error:
        what = "nothing can be written in its home"
        return Finding(
            "home-readonly", Level.ERROR, seen.name, what, f"{path}: {error}", "look at its disk"
        )
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
        yield Finding(
            "tmp-full",
            Level.ERROR,
            seen.name,
            "/tmp cannot be written" if error in _UNWRITABLE else "/tmp is full",
            f"{room}, writing gives {error}" if error else room,
            "remove what is not needed in /tmp" + _left(seen, "/tmp"),
            fixable="/tmp" in seen.health.get("leftovers", {}),
        )
    if folder.get("noexec"):
        yield Finding(
            "tmp-noexec",
            Level.WARNING,  # shanty starts nothing from there; what frameworks compile goes there
            seen.name,
            "/tmp is mounted noexec, so what is compiled there at run time cannot be loaded",
            "the mount has the flag noexec",
            "mount it without, or set TMPDIR for the ranks to a folder in the home (-e TMPDIR=…)",
            there(seen.host, "sudo", "mount", "-o", "remount,exec", "/tmp"),
        )


def _left(seen: Seen, folder: str) -> str:
    left = seen.health.get("leftovers", {}).get(folder)
    if not left:
        return ""
    files = "a file" if left["count"] == 1 else f"{left['count']} files"
    return f"; {files} of MPI jobs that ended take {amount(left['bytes'])} there"


def _shared_memory(seen: Seen, need: Need) -> Iterator[Finding]:
    folder = seen.survey["room"]["folders"].get("shm")
    if folder is None or "size" not in folder:
        return
    ranks = max(1, need.ranks.get(seen.name, 1))
    wanted = need.footprint.shared_memory(ranks)
    size, free = folder["size"], folder["free"]
    level = Level.ERROR if need.footprint.vital else Level.WARNING
    count = "1 rank wants" if ranks == 1 else f"{ranks} ranks want"
    bigger = "make it larger: mount -o remount,size=4G /dev/shm; for a container, --shm-size=4g"
    if size and size < wanted:
        yield Finding(
            "shm-small",
            level,
            seen.name,
            "/dev/shm is too small for the ranks' shared memory",
            f"it has {amount(size)}, {count} {amount(wanted)}",
            bigger,
            there(seen.host, "sudo", "mount", "-o", "remount,size=4G", "/dev/shm"),
        )
    elif folder["error"] or (size and free < wanted):
        yield Finding(
            "shm-full",
            Level.ERROR if folder["error"] or free < _MIB else level,
            seen.name,
            "/dev/shm cannot be written" if folder["error"] in _UNWRITABLE else "/dev/shm is full",
            f"{amount(free)} free of {amount(size)}, {count} {amount(wanted)}",
            "remove what is not needed there" + _left(seen, "/dev/shm"),
            there(seen.host, "ls", "-lS", "/dev/shm"),
            fixable="/dev/shm" in seen.health.get("leftovers", {}),
        )
    elif 0 < size <= _SHM_CONTAINER:
        yield Finding(
            "shm-small",
            Level.NOTE,
            seen.name,
            "/dev/shm is as small as a container's",
            f"it has {amount(size)}; the workers of PyTorch's DataLoader pass batches through it",
            bigger,
        )
