"""Holds all in which Linux and macOS differ. Linux is tested; macOS is written by its manual.

macOS has no /proc, no /dev/shm and no way to become the parent of orphans. There, processes are
found with ps(1), and processes that have left their parent are found by their group.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import sys
from typing import Dict, Iterable, Iterator, List, Optional, Set

from shanty.runtime import cgroups
from shanty.runtime.counted import counted
from shanty.runtime.proc_files import read
from shanty.runtime.record import Record

LINUX = sys.platform.startswith("linux")
STOPPED = ("T", "t")  # states of a process that was stopped: by SIGSTOP, by a debugger
SHARED_MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else ""
# Frameworks take SIGUSR1 and SIGUSR2; a real-time signal is not in use by default.
STACKS_SIGNAL = int(getattr(signal, "SIGRTMIN", signal.SIGUSR2)) + (7 if LINUX else 0)
PROBE_SIGNAL = STACKS_SIGNAL + 1 if LINUX else 0  # 0: there is none
PROCESSORS = "SHANTY_HOST_CPUS"  # the variable with those that a container may use
UMASK = "SHANTY_HOST_UMASK"  # the variable with the umask that a container is to have, in octal
# System calls that a stop or signal may end by EINTR although they could be restarted, signal(7):
# epoll_*, rt_sigtimedwait, sem*op, connect, accept*, send*, recv*, msg*, io_getevents.
_DELICATE = {
    "x86_64": (232, 281, 441, 128, 65, 220, 42, 43, 288, 44, 46, 307, 45, 47, 299, 69, 70, 208),
    "aarch64": (22, 441, 137, 193, 192, 203, 202, 242, 206, 211, 269, 207, 212, 243, 189, 188, 4),
}
_SOCKET_PATH = 104  # bytes; macOS has room for the fewest
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_fork_servers: Set[int] = set()


class Process(Record):
    """A process; `born`, in a unit of the system's own, differs from that of a later process."""

    pid: int
    parent: int
    group: int
    state: str  # R, S, D, T …
    born: str
    cpu: float = 0.0  # seconds that it has used (Linux only)


def adopt_orphans() -> bool:
    """Make this process the parent of every descendant that loses its own; False if it can't."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(number: int) -> bool:
    """Have the system send this process a signal when its parent ends; False if it can't."""
    return _prctl(_PR_SET_PDEATHSIG, number)


def _prctl(option: int, value: int) -> bool:
    if not LINUX:
        return False
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(option, value, 0, 0, 0) == 0)


@contextlib.contextmanager
def socket_path(path: str) -> Iterator[str]:
    """A name for the socket at `path` that is short enough for bind and connect."""
    if len(os.fsencode(path)) < _SOCKET_PATH or not LINUX:
        yield path
        return
    folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{os.path.basename(path)}"
    finally:
        os.close(folder)


def _parse_stat(text: str) -> Process:
    """Read /proc/PID/stat; the command name in it may hold spaces and brackets."""
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return Process(int(pid), int(fields[1]), int(fields[2]), fields[0], fields[19], used)


def process(pid: int) -> Optional[Process]:
    """Returns the process with that pid; None when there is none (zombies count as none)."""
    if LINUX:
        try:
            found = _parse_stat(read(f"/proc/{pid}/stat"))
        except (IndexError, ValueError):
            return None
        return None if found.state in "ZX" else found
    return _from_ps().get(pid)


def thread_states(pid: int) -> List[str]:
    """Returns the states of a process' threads (Linux only); empty when it cannot be seen."""
    found: List[str] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(IndexError, ValueError):
                found.append(_parse_stat(read(f"/proc/{pid}/task/{thread}/stat")).state)
    return found


def born(pid: int) -> str:
    """Returns the birth of the process with that pid; "" when there is none."""
    found = process(pid)
    return found.born if found else ""


def is_alive(pid: int, born: str) -> bool:
    """Returns True when the process that had that pid and birth is still there."""
    found = process(pid)
    return found is not None and found.born == born


def processes() -> Dict[int, Process]:
    """Returns every process of this machine that can be seen, zombies left out."""
    if not LINUX:
        return _from_ps()
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            entry = process(int(name))
            if entry is not None:
                found[entry.pid] = entry
    return found


def _from_ps() -> Dict[int, Process]:
    from shanty.runtime.programs import output_of

    found = {}
    words = ["ps", "-axo", "pid=,ppid=,pgid=,stat=,lstart="]
    for line in (output_of(words) or "").splitlines():
        fields = line.split(None, 4)
        if len(fields) == 5 and not fields[3].startswith("Z"):
            pid, parent, group = (int(value) for value in fields[:3])
            found[pid] = Process(pid, parent, group, fields[3], fields[4])
    return found


def look_behind(pid: int) -> None:
    """Have this process count the children of `pid` as its descendants, but not `pid` itself.

    A fork server may have another parent, and is not one of the programs of its run.
    """
    _fork_servers.add(pid)


def descendants(pid: int, groups: Iterable[int] = ()) -> List[Process]:
    """Returns all that descends from `pid`, and on macOS the members of `groups` as well."""
    table = processes()
    children: Dict[int, List[int]] = {}
    for entry in table.values():
        children.setdefault(entry.parent, []).append(entry.pid)
    found: List[Process] = []
    queue = list(children.get(pid, ()))
    if pid == os.getpid():
        queue.extend(_fork_servers.difference(queue))
    while queue:
        current = queue.pop()
        if current not in _fork_servers:
            found.append(table[current])
        queue.extend(children.get(current, ()))
    if not LINUX:
        wanted, seen = set(groups), {entry.pid for entry in found}
        found += [e for e in table.values() if e.group in wanted and e.pid not in seen]
    return [entry for entry in found if entry.pid != os.getpid()]


def marked(variable: str, value: str) -> List[Process]:
    """Returns this user's processes whose environment holds `variable` = `value` (Linux only)."""
    if not LINUX:
        return []
    others = (entry for entry in processes().values() if entry.pid != os.getpid())
    wanted = f"{variable}={value}"
    return [entry for entry in others if wanted in read(f"/proc/{entry.pid}/environ").split("\0")]


def send(entries: Iterable[Process], number: int) -> None:
    """Send the signal to those of `entries` that are still the same processes.

    Stopped ones come first, children before their parents: a parent's end makes its children go on.
    """
    for entry in sorted(entries, key=lambda each: -each.pid if each.state == "T" else 0):
        if is_alive(entry.pid, entry.born):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(entry.pid, number)


def command(pid: int) -> List[str]:
    """Returns the words of a process' command line; empty where the system does not say."""
    return read(f"/proc/{pid}/cmdline").split("\0")[:-1]


def mapped_files(pid: int) -> Set[str]:
    """Returns the files that a process has mapped; empty where the system does not say."""
    paths = (line.split(None, 5)[5:] for line in read(f"/proc/{pid}/maps").splitlines())
    return {path[0] for path in paths if path and path[0].startswith("/")}


def catches(pid: int, number: int) -> bool:
    """Returns True when the process has a handler for the signal, or the system is silent."""
    found = re.search(r"^SigCgt:\s*([0-9a-f]+)$", read(f"/proc/{pid}/status"), re.MULTILINE)
    return bool(int(found[1], 16) >> (number - 1) & 1) if found else not LINUX


class Thread(Record):
    """What the kernel reports about a thread; `switches`: how often it left a core."""

    state: str
    switches: int
    ran: float  # seconds on a core


def main_thread(pid: int) -> Optional[Thread]:
    """Returns what the main thread of a process does; None where the system does not say."""
    text = read(f"/proc/{pid}/status")
    state = re.search(r"^State:\s*(\S)", text, re.MULTILINE)
    switches = re.findall(r"_ctxt_switches:\s*(\d+)$", text, re.MULTILINE)
    ran = read(f"/proc/{pid}/task/{pid}/schedstat").split()
    if state is None or not switches or not ran:
        return None
    return Thread(state[1], sum(map(int, switches)), int(ran[0]) / 1e9)


def must_not_be_woken(pid: int) -> bool:
    """Returns True where the main thread sleeps in a system call that a stop or signal may fail.

    Programs need not expect EINTR there: XGBoost's `recv` gives up. A thread that sleeps there is
    not in an MPI call, since MPI polls.
    """
    call: tuple[int, ...] = ()
    with contextlib.suppress(OSError):
        call = system_call(pid, pid)
    return bool(call) and call[0] in _DELICATE.get(os.uname().machine, ())


def system_call(pid: int, thread: int) -> tuple[int, ...]:
    """Returns the system call in which a thread sleeps: its number and its six arguments.

    Empty while the thread runs. OSError where the system has no such thread, or does not say.
    """
    with open(f"/proc/{pid}/task/{thread}/syscall") as file:
        number, *words = file.read().split()
    return (int(number), *(int(word, 16) for word in words[:6])) if len(words) == 8 else ()


def has_open(pid: int, path: str) -> bool:
    """Returns True when the process has the file open; False where the system does not say."""
    with contextlib.suppress(OSError):
        wanted, folder = os.stat(path), f"/proc/{pid}/fd"
        for name in os.listdir(folder):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(f"{folder}/{name}"), wanted):
                    return True
    return False


def signal_main_thread(pid: int, number: int) -> None:
    """Sends a signal to the main thread of a process, if that is still there."""
    call = {"x86_64": 234, "aarch64": 131}.get(os.uname().machine) if LINUX else None
    if call is not None:
        import ctypes

        ctypes.CDLL(None).syscall(call, pid, pid, number)  # tgkill(2)
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def boot_id() -> str:
    """Returns what changes when the machine is restarted; empty when unknown."""
    return read("/proc/sys/kernel/random/boot_id").strip()


def pid_namespace() -> str:
    """Returns the name of the PID namespace, in which a pid is unique; empty when unknown."""
    with contextlib.suppress(OSError):
        return os.readlink("/proc/self/ns/pid")
    return ""


def with_argument(word: str) -> List[Process]:
    """Returns the processes that have `word` among their arguments (Linux only)."""
    table = processes().values() if LINUX else ()
    return [entry for entry in table if word in read(f"/proc/{entry.pid}/cmdline").split("\0")]


def usable_cores() -> int:
    """Returns how many cores this process may use, by affinity and by control group."""
    cores = len(os.sched_getaffinity(0)) if LINUX else (os.cpu_count() or 1)
    return min(cores, _quota() or cores)


def limit_on_cores() -> str:
    """Returns why this process may use fewer cores than the machine has; "" where it does not."""
    cores, machine = usable_cores(), os.cpu_count() or 1
    if cores >= machine:
        return ""
    cause = "CPU affinity, as set by taskset or a cpuset"
    if cores == _quota():
        cause = "CPU limit of its control group, as set by docker --cpus"
    return f"this process may use {cores} of the machine's {counted(machine, 'core')} ({cause})"


def _quota() -> int:
    """Returns to how many cores the control groups limit this process; 0 without a limit."""
    bound = cgroups.cpu_bound()
    return 0 if bound is None else max(1, math.ceil(bound.cores))


def cpu_numbers() -> str:
    """Returns the numbers of the processors that this process may use, as "0,1"; "" on macOS."""
    return ",".join(map(str, sorted(os.sched_getaffinity(0)))) if LINUX else ""


def umask() -> int:
    """Returns the umask of this process."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def continue_host() -> None:
    """Gives this process in a container the processors and the umask of what started it."""
    mask, numbers = os.environ.pop(UMASK, ""), os.environ.pop(PROCESSORS, "")
    if mask:
        os.umask(int(mask, 8))
    if numbers:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, set(map(int, numbers.split(","))))


def usable_memory() -> int:
    """Returns how many bytes of memory this process may use, by machine and control group."""
    total = 0
    with contextlib.suppress(OSError, ValueError):
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    bound = cgroups.memory_bound()
    return total if bound is None else min(total, bound.limit)


def scratch_root() -> str:
    """Returns the folder of all runs' sockets and session files: paths stay short."""
    return f"/tmp/shanty-{os.getuid()}"
