"""The paths of a run, and the few ways in which its files are written and read.

The run directory is the protocol between the parts of shanty: the command line reads what
the agents and the ranks write here, and nothing else is needed to know a run.

    job.json        what was asked for            logs/rank-K.log  output of rank K, framed
    plan.json       what was made of it           logs/launcher.log  output of the launcher
    status.json     where it stands (atomic)      logs/agent.log   the agents' own words
    events.jsonl    every change of state         stacks/rank-K.txt  answers to `stacks`
    site.json       the hosts of a run that is elsewhere; its lead host's directory is copied here
    hosts.json      the hosts that a queue gave   claims/          which process is the rank
    agents.json     pids of the agents            metrics.jsonl    what the script logged
    hostfile        the hosts, in the MPI's form  progress.json    how far the script is
    reports         FIFO, from ranks to agents    artifacts/       what the script saved
    warm            socket of the fork server     logs/warm.log    what its modules wrote
    left.json       what it wrote on a lead host elsewhere, from where it is not fetched
    asks/           requests and their answers    bin/             the launchers' shims
    key             of the run, to its workers    known_hosts      the keys of the workers
    standby         its time: when a command last asked that stands by to start the next attempt
    heard           its age: when a worker last received a message from its controller
    stalls.jsonl    where all ranks stood when none of them made progress
    resources.jsonl how busy each host was
    reserve         room for the last status on a disk that has filled up
    owner           the user of the dashboard who started it; else the account owns it
    attempts/N/     logs, stacks and claims of the attempts after the first
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import time
from pathlib import Path
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Union

from shanty.runtime.errors import StorageError

RUN_DIR = "SHANTY_RUN_DIR"  # the environment variable in which a rank finds its run
ATTEMPT_DIR = "SHANTY_ATTEMPT_DIR"  # the same for what belongs to an attempt, after the first
RUN_ID = "SHANTY_RUN_ID"  # the same with its id, by which its processes are known
CONTINUES = "SHANTY_CONTINUES"  # the run whose commits this one takes over
WARM = "SHANTY_WARM"  # the modules that the fork servers of a run import
JOINS = "SHANTY_JOINS"  # set for a rank that takes the place of a lost one
SEATS = "--seats="  # `rank.exec` gets it for such ranks: how many there are, and their numbers
SEAT = "SHANTY_SEAT"  # the rank that a process began as, where an elastic run has renumbered it
# Is set in a rank that must not wait for others at its end: 1 where that is an error, else 0.
FAILING = "SHANTY_FAILING"
RESERVE = 64 << 10  # bytes; a status and the lines about a failure fit many times
_LETTERS = "23456789bcdfghjkmnpqrstvwxz"  # no two that look alike, no vowels; in their order


def home(environ: Mapping[str, str]) -> Path:
    """The folder of all that shanty keeps: $SHANTY_HOME, else ~/.shanty."""
    given = environ.get("SHANTY_HOME")
    if given:
        return Path(given).absolute()
    own = environ.get("HOME", "")
    if os.path.isabs(own):
        return Path(own, ".shanty")
    import pwd

    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir, ".shanty")
    except KeyError:
        raise StorageError(
            "no folder found to keep runs in",
            f"HOME is not set, and user {os.getuid()} has no entry in the password database",
            "set HOME, or SHANTY_HOME to a folder that can be written",
        ) from None


def new_id(now: float) -> str:
    """A new run's id, which sorts by time: UTC to 1/729 s, then two random letters."""
    base = len(_LETTERS)
    high, low = divmod(int(now % 1 * base * base), base)
    chance = [byte % base for byte in os.urandom(2)]
    letters = "".join(_LETTERS[digit] for digit in (high, low, *chance))
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime(now)) + letters


def is_run_id(name: str) -> bool:
    """True when `name` has the form of a run's id."""
    return re.fullmatch("[0-9]{8}-[0-9]{6}-[a-z0-9]{4}", name) is not None


def memory_of(run: str) -> Path:
    """The folder in a host's memory that has the commits of a run from one attempt to the next."""
    return Path("/dev/shm", f"shanty-{run}")


class RunDir:
    """The files of one run, by name; what belongs to an attempt is that of the given one.

    The first attempt's files lie in the run's folder itself, those of others in `attempts/N`.
    """

    def __init__(self, path: Path, attempt: int = 1) -> None:
        self.path = path
        self.of_attempt = path if attempt == 1 else path / "attempts" / str(attempt)
        self.id = path.name
        self.job = path / "job.json"
        self.plan = path / "plan.json"
        self.site = path / "site.json"
        self.status = path / "status.json"
        self.events = path / "events.jsonl"
        self.agents = path / "agents.json"
        self.hostfile = path / "hostfile"
        self.standby = path / "standby"
        self.reports = self.of_attempt / "reports"
        self.warm = path / "warm"  # the socket of the host's fork server
        self.asks = path / "asks"
        self.logs = self.of_attempt / "logs"
        self.launcher_log = self.logs / "launcher.log"
        self.agent_log = path / "logs" / "agent.log"
        self.stacks = self.of_attempt / "stacks"
        self.claims = self.of_attempt / "claims"
        self.metrics = path / "metrics.jsonl"
        self.progress = path / "progress.json"
        self.stalls = path / "stalls.jsonl"
        self.resources = path / "resources.jsonl"
        self.inputs = path / "inputs"  # where ranks on this machine find them
        # What functions return or raise, by rank (`tasks`).
        self.results = path / "results" / str(attempt)
        self.artifacts = path / "artifacts"
        self.profile = self.artifacts / "profile.json"
        self.profile_parts = self.artifacts / "profile"  # the ranks', until the end
        self.owner = path / "owner"
        self.left = path / "left.json"  # of a lead host elsewhere
        self.bin = path / "bin"
        self.reserve = path / "reserve"
        # Its age says when a worker last received a message from its controller.
        self.heard = path / "heard"

    def rank_log(self, rank: int) -> Path:
        """The log of rank `rank`."""
        return self.logs / f"rank-{rank}.log"

    def rank_stacks(self, rank: int) -> Path:
        """The last answer of rank `rank` to a request for its stacks."""
        return self.stacks / f"rank-{rank}.txt"

    def rank_request(self, rank: int) -> Path:
        """The FIFO from which rank `rank` reads requests for its stacks."""
        return self.stacks / f"rank-{rank}.ask"

    def rank_signal(self, rank: int) -> Path:
        """Where a signal writes the stack of the main thread of rank `rank`."""
        return self.stacks / f"rank-{rank}.signal"

    def rank_probe(self, rank: int) -> Path:
        """Where a Python rank shows whether its main thread moves."""
        return self.stacks / f"rank-{rank}.pulse"

    def rank_wait(self, rank: int) -> Path:
        """Where a rank writes what an operation of Horovod's API waits for, and since when."""
        return self.stacks / f"rank-{rank}.wait"

    def rank_word(self, rank: int) -> Path:
        """The FIFO from which a rank of an elastic run reads the controller's words."""
        return self.stacks / f"rank-{rank}.word"

    def rank_logs(self) -> Dict[int, Path]:
        """The ranks that have a log so far, in their order."""
        found = {}
        with contextlib.suppress(OSError):
            for entry in os.scandir(self.logs):
                number = entry.name[5:-4]
                if entry.name == f"rank-{number}.log" and number.isdecimal():
                    found[int(number)] = Path(entry.path)
        return dict(sorted(found.items()))

    def attempts(self) -> List[int]:
        """The attempts of the run that have left files, in their order."""
        found = [1]
        with contextlib.suppress(OSError):
            names = os.listdir(self.path / "attempts")
            found += sorted(int(name) for name in names if name.isdecimal())
        return found

    def create(self) -> None:
        """Make the directory and its folders; StorageError when that cannot be done."""
        with storage_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.mkdir(mode=0o700)  # what -e sets may be secret
            try:
                for folder in (self.asks, self.artifacts, self.bin):
                    folder.mkdir()
                self.create_attempt()
                self.agent_log.parent.mkdir(exist_ok=True)
                self.reserve.write_bytes(bytes(RESERVE))
            except OSError:
                import shutil

                shutil.rmtree(self.path, ignore_errors=True)
                raise

    def create_attempt(self) -> None:
        """Make the folders of the attempt."""
        for folder in (self.logs, self.stacks, self.claims):
            folder.mkdir(parents=True)


def make_removable(folder: Path) -> None:
    """Give the owner all rights to a folder and those in it: copies of read-only ones have none."""
    os.chmod(folder, os.stat(folder).st_mode | 0o700)
    for place, names, _ in os.walk(folder):  # which goes on into those of `names`
        for path in (os.path.join(place, name) for name in names):
            if not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode | 0o700)


@contextlib.contextmanager
def storage_errors(
    path: Path, fix: str = "point SHANTY_HOME at a folder that can be written"
) -> Iterator[None]:
    """Turn an OSError of the block into a StorageError that names `path` and the fix."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            raise not_allowed(str(error.filename or path), error) from error
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            fix = "free some space, or point SHANTY_HOME at another disk"
        if error.errno == errno.EFBIG:
            fix = "raise the limit of a file's size, as in a login file: ulimit -f unlimited"
        raise StorageError(f"cannot write {path}", error.strerror or str(error), fix) from error


def not_allowed(path: str, error: OSError) -> StorageError:
    """The error for a file that this user may not open: its owner, and the fix."""
    import shlex

    there = path
    while not os.path.lexists(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    mine, fix = user_name(os.geteuid()), "point SHANTY_HOME at a folder that can be written"
    try:
        owner = user_name(os.stat(there).st_uid)
    except OSError:
        owner = ""
    why = error.strerror or str(error)
    if owner and owner != mine:
        why = f"{there} belongs to {owner}, and you are {mine}"
        own = os.path.join(os.path.expanduser("~"), ".shanty")
        if owner == "root" and (there == own or there.startswith(own + os.sep)):
            fix = f"take it over: sudo chown -R {shlex.quote(mine)} {shlex.quote(own)}; or {fix}"
    return StorageError(f"{path} cannot be used", why, fix)


def user_name(uid: int) -> str:
    """Returns the name of a user; the number where the system has no name for it."""
    import pwd

    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def write_files(run: RunDir, files: Mapping[str, Sequence[Any]]) -> None:
    """Write files into the run's folder; `files` has the text and the mode of each by its path.

    A private file is never readable by others, not even while it is written.
    """
    for path, (text, mode) in files.items():
        file = run.path / path
        file.touch(mode=0o600)
        file.write_text(text)
        file.chmod(mode)


def write_json(path: Path, value: Any) -> None:
    """Replace the file at `path` by `value` in one step: a reader sees the old or the new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def read_json(path: Path) -> Optional[Dict[str, Any]]:
    """The object in the file at `path`; None when it is absent or damaged."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Append `value` as one line of JSON, in one write, so that writers do not mix."""
    line = json.dumps(value) + "\n"
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)


def read_lines(path: Path) -> List[Dict[str, Any]]:
    """The objects in a file of JSON lines; damaged lines are passed over."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return list(json_objects(file))
    return []


def json_objects(lines: Iterable[Union[str, bytes]]) -> Iterator[Dict[str, Any]]:
    """The objects that lines of JSON are; damaged lines are passed over."""
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            value = json.loads(line)
            if isinstance(value, dict):
                yield value
