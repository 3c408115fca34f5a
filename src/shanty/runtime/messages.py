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
    Sequence,
    Tuple,
    Type,
    Union,
    cast,
    get_args,
)  # fmt: skip

from shanty.runtime.record import Record

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


class AskStacks(Record):
    """Have the ranks write their stacks, as the request of this name."""

    name: str


class Warn(Record):
    """Pass a signal to those ranks that have a handler for it."""

    signal: int


class Flush(Record):
    """Send all that the ranks have reported so far, then `Flushed`."""

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
    WorkerPlan, Prepare, Launch, StartDaemon, End, EndHungLauncher, AskStacks, Warn, Flush,
    LookAtActivity, Watch, Listen, TryLinks, StopListening, CheckStore, Leave, Bye, Alive,
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


class MessageError(ValueError):
    """A JSON array that is not a message: of an unknown kind, or with other fields."""


class NotAMessageError(MessageError):
    """A line that is not a JSON array at all, as what a shell prints when it starts."""


class Malformed(Record):
    """A line that came instead of a message."""

    why: str


Reader = Callable[[object], object]


def _wrong(value: object, wanted: str) -> MessageError:
    return MessageError(f"{value!r:.60} is not {wanted}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(value, "a text")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise _wrong(value, "true or false")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(value, "a whole number")
    return value


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise _wrong(value, "a number")
    return value


def _data(value: object) -> bytes:
    from binascii import a2b_base64  # not before the ranks start

    try:
        return a2b_base64(_text(value))
    except ValueError:
        raise _wrong(value, "in base64") from None


def _list(value: object) -> List[object]:
    if not isinstance(value, list):
        raise _wrong(value, "a list")
    return value


def _object(value: object) -> JsonObject:
    if not isinstance(value, dict):
        raise _wrong(value, "an object")
    return value


def report_of(value: object) -> Report:
    """Return the report whose values are `value`; MessageError for something else."""
    values = _object(value)
    _text(values.get("event"))
    _whole(values.get("rank"))
    if any(isinstance(each, (list, dict)) for each in values.values()):
        raise _wrong(value, "a report")
    return Report(cast("Dict[str, Value]", values))


def _fields(value: object, readers: Sequence[Reader]) -> List[object]:
    values = _list(value)
    if len(values) != len(readers):
        raise _wrong(value, f"a list of {len(readers)}")
    return [read(each) for read, each in zip(readers, values)]


def _maybe(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def _many(read: Reader) -> Reader:
    return lambda value: tuple([read(each) for each in _list(value)])


def _by_name(read: Reader) -> Reader:
    return lambda value: {name: read(each) for name, each in _object(value).items()}


def _row(*readers: Reader) -> Reader:
    return lambda value: tuple(_fields(value, readers))


def _record(kind: Callable[..., object]) -> Reader:
    return lambda value: kind(*_fields(value, _readers_of(kind)))


def _report(value: object) -> Report:
    (values,) = _fields(value, [_object])
    return report_of(values)


def _readers_of(kind: Callable[..., object]) -> List[Reader]:
    return [_READERS[text] for text in getattr(kind, "__annotations__", {}).values()]


# By the text of an annotation, which is a text at run time, too.
_READERS: Dict[str, Reader] = {
    "str": _text,
    "bool": _flag,
    "int": _whole,
    "float": _number,
    "bytes": _data,
    "JsonObject": _object,
    "Optional[str]": _maybe(_text),
    "Optional[int]": _maybe(_whole),
    "Optional[float]": _maybe(_number),
    "Dict[str, str]": _by_name(_text),
    "Dict[str, int]": _by_name(_whole),
    "Tuple[str, ...]": _many(_text),
    "Tuple[int, ...]": _many(_whole),
    "Tuple[float, ...]": _many(_number),
    "Tuple[int, int]": _row(_whole, _whole),
    "Tuple[Tuple[str, str], ...]": _many(_row(_text, _text)),
    "Optional[Tuple[int, str]]": _maybe(_row(_whole, _text)),
    "Optional[Tuple[str, int]]": _maybe(_row(_text, _whole)),
    "Optional[Tuple[str, float]]": _maybe(_row(_text, _number)),
    "Optional[Tuple[Frame, ...]]": _maybe(_many(_row(_text, _whole, _text))),
    "Report": _report,
    "HostLoad": _record(HostLoad),
    "Tuple[Tuple[int, str], ...]": _many(_row(_whole, _text)),
    "Tuple[Link, ...]": _many(_record(Link)),
    "Tuple[LinkTarget, ...]": _many(_record(LinkTarget)),
    "Tuple[RankActivity, ...]": _many(_record(RankActivity)),
    "Tuple[RankState, ...]": _many(_record(RankState)),
    "Tuple[StuckConnection, ...]": _many(_record(StuckConnection)),
}


def encode(message: Message) -> bytes:
    """Return the line of a message."""
    return json.dumps([type(message).__name__, *message], default=_base64).encode() + b"\n"


def _base64(value: bytes) -> str:
    from binascii import b2a_base64

    return b2a_base64(value, newline=False).decode("ascii")


def decode(line: bytes) -> Message:
    """Return the message of a line; MessageError for anything else."""
    try:
        value = json.loads(line)
    except ValueError:
        raise NotAMessageError("it is not JSON") from None
    if not isinstance(value, list) or not value:
        raise NotAMessageError("it is not a JSON array")
    name, *fields = value
    kind: Optional[Callable[..., Message]] = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise _wrong(name, "a kind of message")
    return kind(*_fields(fields, _readers_of(kind)))
