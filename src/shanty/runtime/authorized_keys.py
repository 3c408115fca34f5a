"""The runs' lines in ~/.ssh/authorized_keys: the one place that edits that file.

A line of ours lets the key of one run do one thing on this host:

    restrict,from="A,B",expiry-time="YYYYMMDDHHMMSS",command="…" ssh-ed25519 AAAA… \
        shanty:RUN.INDEX@HOST since-SECONDS

It is put before all else, so what the user has stays as it is to the last byte, a missing last
newline included. A line that has not exactly this form is never touched. A file that has no
other line is removed with it, and so is ~/.ssh if nothing else is in it: for sshd, an empty file is
the same as none.
"""

from __future__ import annotations

import atexit
import contextlib
import glob
import os
import re
import socket
import time
from typing import (
    Any,
    BinaryIO,
    Callable,
    Collection,
    Dict,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from shanty.runtime import platform, rundir
from shanty.runtime.errors import ShantyError, StorageError, UsageError
from shanty.runtime.file_edit import edit_file, read_file
from shanty.runtime.programs import output_of

OPTIONS = ("restrict", "from", "expiry-time")  # what an old sshd may lack, see `authorize`
GRACE = 120.0  # seconds that a run has between its line and its first sign of life
_ARRIVAL = 30.0  # seconds that it has once the client that authorized it has gone
_OVERDUE = 60.0  # seconds after its expiry at which a line of this host is swept
_ZONES = 27 * 3600.0  # the same for a line of another host, whose time zone is not known
_TIME = "%Y%m%d%H%M%S"
_OLD_RESTRICT = "no-agent-forwarding,no-port-forwarding,no-pty,no-user-rc,no-X11-forwarding"
_LINE = re.compile(
    rb"(?:restrict|" + _OLD_RESTRICT.encode() + rb")"
    rb'(?:,from="[^"\n\0]*")?'
    rb'(?:,expiry-time="(?P<expiry>\d{14})")?'
    rb',command="(?:[^"\n\0]|(?<=\\)")*"'
    rb" ssh-ed25519 [A-Za-z0-9+/]+=*"
    rb" shanty:(?P<run>\d{8}-\d{6}-[a-z0-9]{4})\.(?P<index>\d+)@(?P<host>[^\s@]+)"
    rb" since-(?P<since>\d+)(?: made-file)?(?: made-folder)?"  # older versions wrote these two
)
IsAlive = Callable[[str, int], Optional[bool]]
_authorized: Set[Tuple[str, str, int]] = set()  # by this server: the file, the run, its index
Say = Callable[[Mapping[str, Any]], None]


class Entry(NamedTuple):
    """What a line of ours says. Times are in seconds since 1970; `expires` None is never."""

    run: str
    host_index: int
    host: str
    since: float
    expires: Optional[float]


def keys_file() -> str:
    """The path of the file that sshd reads for this user, unless its settings name another."""
    return os.path.join(os.path.expanduser("~"), ".ssh", "authorized_keys")


def authorize_key(
    path: str,
    run: str,
    index: int,
    key: str,
    command: str,
    sources: Sequence[str],
    expires: float,
    without: Collection[str] = (),
) -> None:
    """Let `key` ("ssh-ed25519 AAAA…") run `command` here, until `expires`, from `sources` only.

    `without` names those of OPTIONS that the sshd of this host does not know: it would pass
    over the whole line. No sources is any source. A line of this run and index is replaced.
    """
    words = key.split()
    if len(words) < 2 or words[0] != "ssh-ed25519":
        raise UsageError(f"not an ed25519 public key: {key[:40]}")
    options = [_OLD_RESTRICT if "restrict" in without else "restrict"]
    if sources and "from" not in without:
        options.append(f'from="{",".join(sources)}"')
    if "expiry-time" not in without:
        options.append(f'expiry-time="{_to_clock(expires)}"')
    escaped = command.replace('"', '\\"')
    options.append(f'command="{escaped}"')
    comment = f"shanty:{run}.{index}@{socket.gethostname()} since-{int(time.time())}"
    start = f"{','.join(options)} ssh-ed25519 {words[1]} {comment}"
    found = _LINE.fullmatch(start.encode())
    if found is None or command.endswith("\\"):
        raise ShantyError(f"authorized_keys cannot have the line {start}")

    def change(content: Optional[bytes]) -> bytes:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        kept = _without(content or b"", lambda e: (e.run, e.host_index) == (run, index))
        return (start + "\n").encode() + kept

    edit_file(path, change)


def revoke_key(path: str, run: str, index: int) -> None:
    """Remove the line of that run and index; no harm when there is none."""
    _remove(path, lambda entry: (entry.run, entry.host_index) == (run, index))


def renew_key(path: str, run: str, index: int, expires: float) -> bool:
    """Move the expiry of the line of that run and index; False if that line does not exist."""
    found: List[bool] = []

    def change(content: Optional[bytes]) -> Optional[bytes]:
        del found[:]
        if content is None:
            return None
        parts = []
        for line, entry in _split(content):
            if entry is not None and (entry.run, entry.host_index) == (run, index):
                found.append(True)
                if entry.expires is not None:
                    before, _, after = line.partition(b',expiry-time="')
                    line = before + b',expiry-time="' + _to_clock(expires).encode() + after[14:]
            parts.append(line)
        return b"".join(parts)

    edit_file(path, change)
    return bool(found)


def sweep(path: str, is_alive: IsAlive, grace: float = GRACE) -> int:
    """Remove the lines that crashed runs left; how many there were.

    `is_alive(run, index)` is asked about the runs of this host. Its answer None means "no sign of
    the run", which may have been authorized only just now: its line stays for `grace` seconds.
    Lines of other hosts with the same home are removed once they have certainly expired.
    """
    now, here = time.time(), socket.gethostname()
    swept: List[Entry] = []

    def is_left_over(entry: Entry) -> bool:
        own = entry.host == here
        late = _OVERDUE if own else _ZONES
        over = entry.expires is not None and entry.expires + late < now
        if own and not over:
            alive = is_alive(entry.run, entry.host_index)
            over = not alive and (alive is False or entry.since + grace < now)
        if over:
            swept.append(entry)
        return over

    _remove(path, is_left_over)
    return len(set(swept))


def entries(path: str) -> List[Entry]:
    """What the lines of ours in the file at `path` say."""
    content = read_file(os.path.realpath(path))
    return [entry for _, entry in _split(content or b"") if entry is not None]


def run_is_alive(run: str, index: int) -> Optional[bool]:
    """Whether the agent of a run is there, by the `agents.json` in its work folder.

    None if that file does not exist. For a run of another boot of this machine the answer is False.
    """
    folder = rundir.home(os.environ) / "work" / f"{run}.{index}"
    agents = rundir.read_json(folder / "agents.json")
    if agents is None:
        return None
    if agents.get("boot") not in (None, "", platform.boot_id()):
        return False
    found = [v for v in agents.values() if isinstance(v, dict) and {"pid", "born"} <= set(v)]
    return any(platform.is_alive(int(v["pid"]), str(v["born"])) for v in found)


# ------------------------------------------------------------------------------- verbs


def authorize(ask: Mapping[str, Any], _data: BinaryIO, _say: Say) -> Dict[str, Any]:
    """`run index key command from seconds [without]`: let a run's key in for that many seconds.

    `refused` says why where the file cannot be written.
    """
    path = keys_file()
    run, index = ask["run"], int(ask["index"])
    _authorized.add((path, run, index))
    try:
        authorize_key(
            path,
            run,
            index,
            ask["key"],
            ask["command"],
            ask["from"],
            time.time() + float(ask["seconds"]),
            ask.get("without", ()),
        )
    except StorageError as error:
        return {"findings": [], "refused": f"{error.what}: {error.why}"}
    return {"findings": _obstacles(path), "refused": ""}


def revoke(ask: Mapping[str, Any], _data: BinaryIO, _say: Say) -> Dict[str, Any]:
    """`run index`: remove the run's line."""
    line = (keys_file(), ask["run"], int(ask["index"]))
    revoke_key(*line)
    _authorized.discard(line)
    return {}


@atexit.register
def _leave_nothing() -> None:
    """The client has gone: a run that it authorized has come, or its line goes."""
    deadline = time.monotonic() + _ARRIVAL
    for path, run, index in _authorized:
        with contextlib.suppress(OSError, ShantyError):
            while any((one.run, one.host_index) == (run, index) for one in entries(path)):
                alive = run_is_alive(run, index)
                if alive is False or (alive is None and time.monotonic() > deadline):
                    revoke_key(path, run, index)
                if alive is not None:
                    break
                time.sleep(0.1)


def sweep_keys(_ask: Mapping[str, Any], _data: BinaryIO, _say: Say) -> Dict[str, Any]:
    """Remove what crashed runs left."""
    return {"swept": sweep(keys_file(), run_is_alive)}


def host_keys(_ask: Mapping[str, Any], _data: BinaryIO, _say: Say) -> Dict[str, Any]:
    """The public host keys of the sshd that let us in, "TYPE BASE64" each.

    That sshd is asked from here, past the network: it may have other keys than those in /etc/ssh,
    which are read where it does not answer.
    """
    keys = _keys_of_our_sshd(os.environ.get("SSH_CONNECTION", "").split())
    if keys:
        return {"keys": keys}
    for path in sorted(glob.glob("/etc/ssh/ssh_host_*_key.pub")):
        with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
            words = file.read().split()
            if len(words) >= 2:
                keys.append(" ".join(words[:2]))
    return {"keys": keys}


def _keys_of_our_sshd(connection: Sequence[str]) -> List[str]:
    """What ssh-keyscan says of the sshd of a login; `connection` is its SSH_CONNECTION."""
    if len(connection) != 4:
        return []
    text = output_of(["ssh-keyscan", "-T", "3", "-p", connection[3], connection[2]], 5.0) or ""
    lines = (line.split() for line in text.splitlines() if not line.startswith("#"))
    return sorted(" ".join(words[1:3]) for words in lines if len(words) == 3)


# -------------------------------------------------------------------------- the file


def _split(content: bytes) -> Iterator[Tuple[bytes, Optional[Entry]]]:
    """The lines of a file, their newlines included, and what they say where they are ours."""
    for line in re.findall(rb"[^\n]*\n|[^\n]+", content):
        text = line[:-1] if line.endswith(b"\n") else line
        found = _LINE.fullmatch(text) if b" shanty:" in text else None
        entry = None
        if found is not None:
            expiry = found["expiry"]
            entry = Entry(
                found["run"].decode(),
                int(found["index"]),
                os.fsdecode(found["host"]),
                float(found["since"]),
                _from_clock(expiry.decode()) if expiry else None,
            )
        yield line, entry


def _without(content: bytes, unwanted: Callable[[Entry], bool]) -> bytes:
    return b"".join(line for line, entry in _split(content) if entry is None or not unwanted(entry))


def _remove(path: str, unwanted: Callable[[Entry], bool]) -> None:
    """Remove lines of ours; and the file and its folder, when nothing is left in them."""
    emptied = False

    def change(content: Optional[bytes]) -> Optional[bytes]:
        nonlocal emptied
        kept = None if content is None else _without(content, unwanted)
        emptied = bool(content) and not kept
        return None if emptied else kept

    def then() -> None:
        if emptied:
            with contextlib.suppress(OSError):  # something else is in it
                os.rmdir(os.path.dirname(path))

    edit_file(path, change, then)


# ------------------------------------------------------------------------- time, rights


@contextlib.contextmanager
def _time_of_sshd() -> Iterator[None]:
    """Reckon in the machine's own time zone, as sshd does, whatever TZ the login has set."""
    given = os.environ.pop("TZ", None)
    time.tzset()
    try:
        yield
    finally:
        if given is not None:
            os.environ["TZ"] = given
            time.tzset()


def _to_clock(seconds: float) -> str:
    """The time on this machine's clock; no reading of it is earlier than `seconds`.

    In the hour that comes twice when summer time ends, sshd may take the first.
    """
    text = ""
    with _time_of_sshd():
        wanted = int(seconds) + 1
        for later in (0, 3600, 7200):
            text = time.strftime(_TIME, time.localtime(wanted + later))
            if time.mktime(time.strptime(text, _TIME)) >= wanted:
                break
    return text


def _from_clock(text: str) -> Optional[float]:
    with _time_of_sshd(), contextlib.suppress(ValueError, OverflowError):
        return time.mktime(time.strptime(text, _TIME))
    return None


def _obstacles(path: str) -> List[str]:
    """Why sshd may ignore the file, as far as that can be seen from here."""
    found = []
    folder = os.path.dirname(path)
    for place in (os.path.dirname(folder), folder, os.path.realpath(path)):
        status = os.stat(place)
        if status.st_mode & 0o022:
            found.append(
                f"others than its owner may write {place}, so sshd may refuse every key in "
                f"{path} (StrictModes); chmod go-w {place}"
            )
        if status.st_uid not in (0, os.getuid()):
            found.append(f"{place} belongs to another user, so sshd may refuse {path}")
    settings = _sshd_settings()
    files = settings.get("authorizedkeysfile", ".ssh/authorized_keys")
    if ".ssh/authorized_keys" not in files.replace('"', " ").replace("%h/", "").split():
        found.append(f"sshd reads {files} instead of {path} (AuthorizedKeysFile)")
    if settings.get("pubkeyauthentication") == "no":
        found.append("sshd accepts no keys (PubkeyAuthentication no)")
    return found


def _sshd_settings() -> Dict[str, str]:
    """What sshd's files set for everybody, in lower case, as far as they can be read."""
    found: Dict[str, str] = {}
    for path in [*sorted(glob.glob("/etc/ssh/sshd_config.d/*.conf")), "/etc/ssh/sshd_config"]:
        with contextlib.suppress(OSError), open(path, errors="replace") as file:
            for line in file:
                name, _, value = line.strip().replace("=", " ", 1).partition(" ")
                if name.lower() == "match":
                    break
                found.setdefault(name.lower(), value.strip())  # the first one counts
    return found
