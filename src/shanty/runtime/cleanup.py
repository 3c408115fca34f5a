"""Removes what the processes of a run left behind once they are gone."""

from __future__ import annotations

import contextlib
import fnmatch
import os
import shutil
import signal
import stat
import subprocess
import time
from typing import Callable, Iterable, List, Sequence, Set

from shanty.runtime import platform
from shanty.runtime.plan import Plan
from shanty.runtime.programs import run
from shanty.runtime.rundir import RunDir, is_run_id, memory_of


def shared_memory_of(pids: Iterable[int], since: float) -> Set[str]:
    """The files in /dev/shm that the processes have mapped and that came up after `since`."""
    root = platform.SHARED_MEMORY + "/"
    found: Set[str] = set()
    if platform.SHARED_MEMORY:
        for pid in pids:
            found.update(path for path in platform.mapped_files(pid) if path.startswith(root))
    return {path for path in found if _is_ours(path, since)}


def _is_ours(path: str, since: float) -> bool:
    """True for a plain file of this user's that was made after `since`."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    made = status.st_uid == os.getuid() and status.st_ctime >= since
    return made and stat.S_ISREG(status.st_mode)


_ANSWER = 10.0  # seconds for an engine to end containers
_REMOVALS = 5  # podman's first one fails if the container's monitor (conmon) died before it
_CREATION = 0.3  # seconds in which a daemon may still create one whose client was ended
STARTING = 3.0  # seconds after its start in which a launcher has written its files


def made_between(patterns: Sequence[str], since: float, until: float) -> Set[str]:
    """The plain files in /tmp that match and that this user's jobs made in that time.

    Hydra's daemon writes the machine's topology into such a file while the ranks are in MPI_Init,
    and removes it at its end, unless it is killed. The name does not show the job that the file
    belongs to: it may be another job of this user that began in that time. A rank that does not
    find the file looks at the machine itself.
    """
    return _matching("/tmp", patterns, since, until)


def _matching(
    folder: str, patterns: Sequence[str], since: float, until: float = float("inf")
) -> Set[str]:
    """This user's plain files in a folder that match and were made in that time."""
    found = set()
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            fits = any(fnmatch.fnmatch(entry.name, pattern) for pattern in patterns)
            if fits and _is_ours(entry.path, since) and entry.stat().st_ctime <= until:
                found.add(entry.path)
    return found


def end_all(members: Callable[[], List[platform.Process]]) -> None:
    """SIGKILL what `members` finds until it finds nothing, for five seconds at most."""
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline:
        left = members()
        if not left:
            return
        platform.send(left, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def end_container(plan: Plan) -> None:
    """End the run's container on this host, if it has one."""
    if plan.lead.container:
        from shanty.runtime.containers.container import Container
        from shanty.runtime.containers.engines import remove

        remove(Container.from_json(plan.lead.container))


def end_containers(engines: Iterable[str], run_dir: str) -> None:
    """End the containers that ranks of the run have started; of `--rm` also what is left of them.

    `engines` are the words that start them: the parent of such a container is a daemon, no rank.
    """
    from shanty.runtime.lines.container_engine import REMOVED, label

    for engine in engines:
        words = engine.split(" ")
        listing = [*words, "ps", "--all", "--quiet", "--filter", f"label={label(run_dir)}"]
        states = [w for s in ("created", "running", "paused") for w in ("--filter", f"status={s}")]
        wanted = ([*listing, *states], [*listing, "--filter", f"label={REMOVED}"])
        quiet = False
        for _ in range(_REMOVALS):
            known = {each for line in wanted for each in _asked(line)}
            if known:
                _asked([*words, "kill", *known])  # podman's `rm` would wait for an end of itself
                _asked([*words, "rm", "--force", *known])
                quiet = False
            elif quiet:
                break
            else:
                quiet = True
                time.sleep(_CREATION)


def _asked(words: List[str]) -> List[str]:
    """The words that an engine answers; none where it fails."""
    done = run(words, _ANSWER)
    return done.stdout.split() if done is not None else []


def folders(scratch: str) -> List[str]:
    """The folders that a run has to itself: session files, and segments of shared memory."""
    found = [scratch]
    if platform.SHARED_MEMORY:
        found.append(os.path.join(platform.SHARED_MEMORY, os.path.basename(scratch)))
    return found


def drop_commits(run: str) -> None:
    """Remove the commits of a run that are in this host's memory: no other attempt follows."""
    shutil.rmtree(memory_of(run), ignore_errors=True)


def drop_commits_later(run: str) -> None:
    """Remove them after ten minutes, unless another run has taken them over by then."""
    line = 'for i in $(seq 300); do [ -d "$0" ] || exit; sleep 2; done; rm -rf "$0"'
    if memory_of(run).exists():
        with contextlib.suppress(OSError):
            subprocess.Popen(
                ["sh", "-c", line, str(memory_of(run))],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                env={"PATH": os.defpath}, cwd="/", start_new_session=True,
            )  # fmt: skip


def take_over_commits(before: str, run: str) -> None:
    """Make the commits of another run, which this one continues, those of this one."""
    if is_run_id(before):
        with contextlib.suppress(OSError):
            memory_of(before).rename(memory_of(run))


def end_waiting(run: RunDir, plan: Plan) -> None:
    """Remove what is left on this host for another attempt, which does not follow."""
    drop_commits(plan.id)
    with contextlib.suppress(OSError):
        run.warm.unlink()  # its fork server ends


def sweep_after(plan: Plan) -> None:
    """Sweep for a run whose node agent cannot do it any more."""
    since = plan.created
    own = made_between(plan.leftovers.temporary, since, since + STARTING)
    sweep(plan.scratch, own, plan.leftovers.shared_memory, since)


def sweep(scratch: str, own: Iterable[str], patterns: Sequence[str], since: float) -> List[str]:
    """Remove the run's own folders, the files `own`, and forgotten shared memory.

    Forgotten are files in /dev/shm that match `patterns`, belong to this user and are younger
    than `since` (seconds since 1970). What any process has open or mapped stays: another job
    holds it. Returns what was removed.
    """
    removed = []
    for folder in folders(scratch):
        if os.path.isdir(folder):
            shutil.rmtree(folder, ignore_errors=True)
            removed.append(folder)
    parent = os.path.dirname(scratch)
    if os.path.basename(parent).startswith("shanty-"):  # never /tmp itself, which root could remove
        with contextlib.suppress(OSError):
            os.rmdir(parent)  # the last run of this user takes it along
    doomed = set(own)
    if platform.SHARED_MEMORY:
        doomed |= _matching(platform.SHARED_MEMORY, patterns, since)
    if doomed:
        doomed -= in_use()
    for path in doomed:
        with contextlib.suppress(OSError):
            os.unlink(path)
            removed.append(path)
    return removed


def in_use() -> Set[str]:
    """Returns what any process has open or mapped, as far as this user may see."""
    used: Set[str] = set()
    for pid in platform.processes():
        used |= platform.mapped_files(pid)
        with contextlib.suppress(OSError):
            for fd in os.scandir(f"/proc/{pid}/fd"):
                with contextlib.suppress(OSError):
                    used.add(os.readlink(fd.path))
    return used
