"""The messages between the controller of a run and its node agents.

An `Order` goes from the controller to a node agent, a `Told` from a node agent to the controller.
On the wire a message is one line, a JSON array: the name of its class, then its fields. Both ends
run the same version, so the format may change.

The ranks wait for this module to load: messages are `Record`s, and the types of their fields are
never evaluated.
"""

from __future__ import annotations

import json
from typing import (
    Callable,
    Dict,
    List,
    Mapping,
    Optional,
    Tuple,
    Type,
    Union,
    cast,
    get_args,
)

from shanty.runtime.record import Record
from shanty.runtime.record_reader import (
    MisfitError,
    Reader,
    fields,
    json_object,
    misfit,
    reader,
    text,
    whole,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    Json = Union[None, bool, int, float, str, List["Json"], Dict[str, "Json"]]
    JsonObject = Dict[str, Json]
    Value = Union[str, int, float, bool, None]  # in a report of a rank
    Frame = Tuple[str, int, str]  # file, line, function


class Report(Record):
    """What a rank reported (`rank/reports.py`); `values` has the event, rank and world, too."""

    values: Mapping[str, Value]

    @property
    def event(self) -> str:
        """What happened to the rank."""
        return self.text("event")

    @property
    def rank(self) -> int:
        """The number of the rank in its world."""
        return self.whole("rank") or 0

    @property
    def world(self) -> str:
        """The world: "0" for that of the run's launcher, else the pid of a nested launcher."""
        return self.text("world", "0")

    def text(self, key: str, default: str = "") -> str:
        """Return the value of `key` as text, `default` where there is none."""
        value = self.values.get(key)
        return default if value is None else str(value)

    def whole(self, key: str) -> Optional[int]:
        """Return the whole number of `key`, None where there is none."""
        value = self.values.get(key)
        return value if isinstance(value, int) else None

    def number(self, key: str, default: float) -> float:
        """Return the number of `key`, `default` where there is none."""
        value = self.values.get(key)
        return value if isinstance(value, (int, float)) else default

    def flag(self, key: str) -> bool:
        """Return whether `key` is true."""
        return bool(self.values.get(key))

    def extended(self, **values: Value) -> Report:
        """Return the report with these values."""
        return Report({**self.values, **values})


class RankState(Record):
    """What a node agent saw of a rank; times are ages in seconds, `cpu` is in cores.

    `host` is set by the controller. `ready` is the share of the looks in which the process ran or
    wanted to. `read` is false where its native stack could not be read. `call` is its MPI call,
    "" outside of MPI, and `waits` the time since it entered that call. `still`: it has been in one
    place of Python; `inside`: in one call of C; `through`: since it last moved in or out of MPI;
    None where that is not known. `wait` is what the rank itself says that it waits for, and for
    how long. `frames` is the native stack of a program that is not Python. `child` is a child
    process, pid and command, that hangs in MPI_Init. `lock` is a file that the rank waits to lock,
    and the pid of its holder, 0 for unknown.
    """

    host: str
    world: str
    rank: int
    pid: int = 0
    state: str = ""
    ready: float = 0.0
    cpu: float = 0.0
    read: bool = False
    call: str = ""
    waits: float = 0.0
    still: Optional[float] = None
    inside: Optional[float] = None
    through: Optional[float] = None
    wait: Optional[Tuple[str, float]] = None
    frames: Optional[Tuple[Frame, ...]] = None
    child: Optional[Tuple[int, str]] = None
    lock: Optional[Tuple[str, int]] = None


class Link(Record):
    """A link of a host, not the loopback: `carries` is false when it is down, `used` true when it
    has ever carried anything. `bytes` are those of the direction that carried more, `errors` all.
    """

    name: str
    carries: bool
    used: bool
    bytes: int
    errors: int


class HostLoad(Record):
    """The load of a host: `load` of 1 min, memory in bytes.

    The bytes and errors of `links`, `tcp` (segments sent, and sent again) and `own`, the bytes of
    the ranks' connections to other hosts, are those of the last `seconds`. `halted` are processes
    of the launcher that are stopped.
    """

    load: float
    cores: int
    free: int
    total: int
    links: Tuple[Link, ...]
    tcp: Tuple[int, int]  # segments sent, and sent again
    seconds: float
    own: int = 0
    halted: Tuple[Tuple[int, str], ...] = ()


class RankActivity(Record):
    """What a rank does; "" while that is not known."""

    world: str
    rank: int
    does: str


class LinkTarget(Record):
    """An address of another host to try, with the own address to come from."""

    address: str
    port: int
    token: str
    source: str


class StuckConnection(Record):
    """A connection of a rank on which data was sent `again` that often without effect."""

    local: str
    remote: str
    again: int


# --------------------------------------------------- orders, from the controller to a node agent


class WorkerPlan(Record):
    """The part of the plan that a worker needs: the first message to it."""

    plan: JsonObject


class Prepare(Record):
    """Make the host ready for ranks, which have these variables on all hosts."""

    variables: Dict[str, str]


class Launch(Record):
    """Start the launcher, with this added to its environment."""

    environment: Dict[str, str]


class StartDaemon(Record):
    """Start a daemon of the launcher; its output and its end come back with the number."""

    number: int
    command: str


class End(Record):
    """End the ranks of a world, None for everything: SIGKILL after `grace` seconds."""

    world: Optional[str]
    grace: float


class EndHungLauncher(Record):
    """End the launcher of a world if it has outlived its ranks."""

    world: str


class KillRanks(Record):
    """End these ranks by SIGKILL, as those that hang; an elastic run goes on without them."""

    ranks: Tuple[int, ...]


class TellRanks(Record):
    """A word for the ranks in `ranks` that run on the host (`node/rank_words.py`)."""

    ranks: Tuple[int, ...]
    word: str


class AskStacks(Record):
    """Have the ranks write their stacks, as the request of this name."""

    name: str


class Warn(Record):
    """Pass a signal to those ranks that have a handler for it."""

    signal: int


class Flush(Record):
    """Send all that has happened here so far, then `Flushed`; world "": as a sign of life."""

    world: str


class LookAtActivity(Record):
    """Look at what the ranks do; `afresh`: earlier looks say nothing about them."""

    afresh: bool


class Watch(Record):
    """Send `Moves` every so many seconds, None for no more; the load is that of `bound` seconds."""

    every: Optional[float]
    bound: float = 0.0


class Listen(Record):
    """Listen at these addresses for hosts that have the token, then send `LinkPorts`."""

    check: int
    addresses: Tuple[str, ...]
    token: str


class TryLinks(Record):
    """Connect to other hosts, once for each timeout (seconds), then send `LinkResults`."""

    check: int
    targets: Tuple[LinkTarget, ...]
    timeouts: Tuple[float, ...]


class StopListening(Record):
    """The check of the links is over."""

    check: int


class CheckStore(Record):
    """Look for damage in these folders of the host's store, then send `StoreDamage`."""

    paths: Tuple[str, ...]


class Leave(Record):
    """End; `comes_again`: for another attempt, so that the host still accepts the run's key."""

    comes_again: bool


class Bye(Record):
    """The answer to `Gone`: all files have arrived."""


class Alive(Record):
    """The heartbeat of the controller."""


class Heard(Record):
    """The answer to a `Beat` in an elastic run: at the time `sent`, the host was a part of it."""

    sent: float


# --------------------------------------------------- reports, from a node agent to the controller


class Hello(Record):
    """The node agent of a worker is there; these ports are free on its host."""

    ports: Tuple[int, ...]


class Ready(Record):
    """The host is ready for ranks; `settings` of MPIs were set on it before the run."""

    settings: Dict[str, str]


class Unready(Record):
    """The host cannot be made ready."""

    why: str


class LauncherEnded(Record):
    """The launcher ended, or could not be started: `error`."""

    code: int
    error: str = ""


class LauncherHung(Record):
    """The launcher of a world outlived its ranks and is ended."""

    world: str


class Gone(Record):
    """Everything of the run on the host has ended; leftovers were `removed`.

    whole: all files were sent. lost: the run's folder on the host was removed during the run.
    """

    removed: Tuple[str, ...]
    whole: bool = True
    lost: bool = False


class RankReport(Record):
    """A report of a rank, or about a rank; `sent` by the monotonic clock of the host."""

    report: Report
    sent: float


class Moves(Record):
    """Where the ranks of the host stand, and the load of the host."""

    ranks: Tuple[RankState, ...]
    load: HostLoad


class Warned(Record):
    """The answer to `Warn`: the ranks that it `reached`, and those `without` a handler."""

    reached: Tuple[int, ...]
    without: Tuple[int, ...]


class Flushed(Record):
    """The answer to `Flush`: all earlier reports were sent."""

    world: str


class Activity(Record):
    """What the ranks of the host do."""

    ranks: Tuple[RankActivity, ...]


class LinkPorts(Record):
    """The host listens at these ports, by address; these connections of ranks are stuck."""

    check: int
    ports: Dict[str, int]
    stuck: Tuple[StuckConnection, ...]


class LinkResults(Record):
    """A kind of `network_probe.probe`, and why, for each target."""

    check: int
    tried: Tuple[Tuple[str, str], ...]


class StoreDamage(Record):
    """The damage that was found in the host's store."""

    found: Tuple[str, ...]


class Sample(Record):
    """How busy the host is, as a line of `resources.jsonl` has it, without time and host."""

    sample: JsonObject
    sent: float


class FilePiece(Record):
    """A piece of a file of the run (`mirror.Change`)."""

    path: str
    offset: Optional[int]
    data: bytes


class DaemonOutput(Record):
    """Output of a daemon of the launcher; `stream` is 1 or 2."""

    number: int
    stream: int
    data: bytes


class DaemonEnded(Record):
    """A daemon of the launcher ended, or could not be started: `error`."""

    number: int
    code: int
    error: str = ""


class Beat(Record):
    """The heartbeat of a node agent; `sent` by the monotonic clock of its host."""

    sent: float


Order = Union[
    WorkerPlan, Prepare, Launch, StartDaemon, End, EndHungLauncher, KillRanks, TellRanks, AskStacks,
    Warn, Flush, LookAtActivity, Watch, Listen, TryLinks, StopListening, CheckStore, Leave, Bye,
    Alive, Heard,
]  # fmt: skip
Told = Union[
    Hello, Ready, Unready, LauncherEnded, LauncherHung, Gone, RankReport, Moves, Warned, Flushed,
    Activity, LinkPorts, LinkResults, StoreDamage, Sample, FilePiece, DaemonOutput, DaemonEnded,
    Beat,
]  # fmt: skip
Message = Union[Order, Told]
if TYPE_CHECKING:
    LinkOrder = Union[Listen, TryLinks, StopListening]
KINDS: Dict[str, Type[Message]] = {kind.__name__: kind for kind in get_args(Message)}

# --------------------------------------------------------------------------------- the codec


class NotAMessageError(MisfitError):
    """A line that is not a JSON array at all, as what a shell prints when it starts."""


class Malformed(Record):
    """A line that came instead of a message."""

    why: str


def report_of(value: object) -> Report:
    """Return the report whose values are `value`; MisfitError for something else."""
    values = json_object(value)
    text(values.get("event"))
    whole(values.get("rank"))
    if any(isinstance(each, (list, dict)) for each in values.values()):
        raise misfit(value, "a report")
    return Report(cast("Dict[str, Value]", values))


def _report(value: object) -> Report:
    if not isinstance(value, list) or len(value) != 1:
        raise misfit(value, "a list of 1")
    return report_of(value[0])


def _record(kind: Callable[..., object]) -> Reader:
    return lambda value: kind(*fields(kind, value, _NAMED))


_NAMED: Dict[str, Reader] = {
    "Report": _report,
    "Frame": reader("Tuple[str, int, str]", {}),
    **{
        kind.__name__: _record(kind)
        for kind in (HostLoad, Link, LinkTarget, RankActivity, RankState, StuckConnection)
    },
}


def encode(message: Message) -> bytes:
    """Return the line of a message."""
    return json.dumps([type(message).__name__, *message], default=_base64).encode() + b"\n"


def _base64(value: bytes) -> str:
    from binascii import b2a_base64

    return b2a_base64(value, newline=False).decode("ascii")


def decode(line: bytes) -> Message:
    """Return the message of a line; MisfitError for anything else."""
    try:
        value = json.loads(line)
    except ValueError:
        raise NotAMessageError("it is not JSON") from None
    if not isinstance(value, list) or not value:
        raise NotAMessageError("it is not a JSON array")
    name, *values = value
    kind: Optional[Callable[..., Message]] = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise misfit(name, "a kind of message")
    return kind(*fields(kind, values, _NAMED))
