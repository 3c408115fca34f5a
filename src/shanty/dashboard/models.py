"""What goes in and out of the HTTP API. Times are seconds since 1970, sizes are bytes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from shanty.client.report import HostReport, RankState
from shanty.launch.resources import Series as HostSeries

_NO_NUL = r"^[^\x00]*$"
Text = Annotated[str, StringConstraints(max_length=64 << 10, pattern=_NO_NUL)]
Word = Annotated[str, StringConstraints(max_length=4096, pattern=_NO_NUL)]
Tag = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=_NO_NUL)]
Variable = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00=\s]+$")]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
State = Literal["pending", "starting", "running", "succeeded", "failed", "stopped", "lost"]


class Model(BaseModel):
    """The ground of what goes out."""


class Given(BaseModel):
    """The ground of what comes in: what is not known, or of another type, is refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


# --------------------------------------------------------------------------------- errors, users


class Problem(Model):
    """What happened, why, and what to do about it."""

    what: str
    why: str = ""
    fix: str = ""


class Failed(Model):
    """The answer to a request that could not be served."""

    error: Problem


class Me(Model):
    """Who asks, and what that user may do; `read_only`: nothing can be changed."""

    name: str
    role: Literal["admin", "user", "viewer"]
    version: str
    home: str
    read_only: bool


# ------------------------------------------------------------------------------------------ runs


class Summary(Model):
    """One run, as a row of a table. `stalled` is since when; `alone` and `failure` are one line."""

    id: str
    name: str | None
    state: State
    exit_code: int | None
    ranks: int | None
    joined: int
    created: float
    started: float | None
    ended: float | None
    took: float
    target: str
    on: str | None
    machine_type: str | None
    tags: list[str]
    command: str
    owner: str
    stalled: float | None
    alone: str | None
    reason: str | None
    failure: str | None
    attempt: int
    url: str


class Facets(Model):
    """How many runs there are of each value that a filter can have."""

    states: dict[str, int]
    tags: dict[str, int]
    targets: dict[str, int]
    machine_types: dict[str, int]


class RunList(Model):
    """One page of runs; `total` is how many fit in all."""

    total: int
    runs: list[Summary]
    facets: Facets


class Finding(Model):
    """Why a run failed; `rank` and `host` are null where no rank is to blame."""

    what: str
    why: str
    fix: str
    rank: int | None
    host: str | None
    lines: list[str]


class CodeVersion(Model):
    """The commit that a run's code was at; `dirty` where files were changed since."""

    commit: str
    dirty: bool


class Detail(Summary):
    """All that is known of one run."""

    ranks: list[RankState]  # type: ignore[assignment]  # their number is in `status`
    status: dict[str, Any]
    job: dict[str, Any]
    target_options: dict[str, Any]
    hosts: list[HostReport]
    finding: Finding | None
    waits: str
    progress: dict[str, Any] | None
    attempts: list[int]
    stalls: list[dict[str, Any]]
    events: list[dict[str, Any]]
    command_line: str
    environment: dict[str, str]
    workspace: str
    code_version: CodeVersion | None
    artifacts_count: int
    metrics: list[str]


class Id(Model):
    """The id of a run."""

    id: str


class Stop(Given):
    """How a run is stopped: `kill` sends SIGKILL at once."""

    kill: bool = False


class TagChange(Given):
    """Tags to put on a run, and to take off."""

    add: list[Tag] = Field(default=[], max_length=100)
    remove: list[Tag] = Field(default=[], max_length=100)


class Stacks(Model):
    """The stack of each rank as text, the innermost call first; `missing` did not answer."""

    ranks: dict[str, str]
    missing: list[int]


# ------------------------------------------------------------------------------------------ logs


class LogLine(Model):
    """A line of a log; `whole` is false where its end is not there, or not yet."""

    offset: int
    time: float | None
    stream: Literal["stdout", "stderr"]
    text: str
    whole: bool


class LogWindow(Model):
    """The lines from byte `begin` to byte `end` of a log of `size` bytes."""

    rank: int | str
    attempt: int
    begin: int
    end: int
    size: int
    lines: list[LogLine]


class LogMatch(Model):
    """A line in which something was found; `text` is cut where it is long."""

    offset: int
    time: float | None
    text: str


class LogMatches(Model):
    """What a part of a log had; `next` is where to go on, null at its end."""

    matches: list[LogMatch]
    next: int | None
    scanned: int


# ------------------------------------------------------------------------- metrics and resources


class MetricSeries(Model):
    """The values of one metric of one rank: step, time, value."""

    name: str
    rank: int
    points: list[tuple[float, float, float | None]]


class Metrics(Model):
    """The metrics of a run, thinned."""

    series: list[MetricSeries]


class Resources(Model):
    """What the hosts of a run had in use over time."""

    hosts: dict[str, HostSeries]


class Parameter(Model):
    """One option, variable or argument of several runs."""

    name: str
    values: list[Any]
    differs: bool


class MetricOfRuns(Model):
    """One metric of several runs: its last value, its least and its greatest."""

    name: str
    last: list[float | None]
    best_min: list[float | None]
    best_max: list[float | None]


class Comparison(Model):
    """Runs side by side; lists are in the order of the runs."""

    runs: list[Summary]
    parameters: list[Parameter]
    metrics: list[MetricOfRuns]


# ------------------------------------------------------------------------------------- artifacts


class Artifact(Model):
    """A file or folder that a run has saved; `preview` says how it can be shown."""

    name: str
    kind: Literal["file", "folder"]
    size: int
    modified: float
    preview: Literal["text", "image", "table"] | None


class Artifacts(Model):
    """What is in one folder of a run's artifacts."""

    path: str
    entries: list[Artifact]


class DownloadAddress(Model):
    """Where a browser fetches a download: once, within a minute, without a token."""

    url: str


class Preview(Model):
    """The beginning of a file, or a part from `offset` on: text, or the rows of a table.

    `next` is the offset to go on at, null at the end.
    """

    kind: Literal["text", "table", "image"]
    size: int
    text: str | None = None
    columns: list[str] | None = None
    rows: list[list[str]] | None = None
    next: int | None = None


# -------------------------------------------------------------------------------------- machines


class UsedBy(Model):
    """The slots that a run has on a host; no id where the run is not yours to see."""

    id: str | None
    slots: int


class HostFinding(Model):
    """What the doctor found on a host."""

    code: str
    severity: str
    what: str
    fix: str


class Machine(Model):
    """A host that is known; `checked` is when the doctor last looked at it."""

    name: str
    group: str | None
    address: str
    types: list[str]
    slots: int | None
    free: int | None
    runs: list[UsedBy]
    findings: list[HostFinding]
    checked: float | None


class MachineType(Model):
    """A name for machines of one kind."""

    name: str
    on: str
    kind: str
    slots: int | None
    gpus: int | None
    total: int | None
    free: int | None


class Waiting(Model):
    """A run that waits for machines."""

    id: str
    name: str | None
    needs: str
    priority: int
    place: int


class Machines(Model):
    """Hosts, types and the queue."""

    hosts: list[Machine]
    types: list[MachineType]
    queue: list[Waiting]


class Check(Given):
    """The group of hosts that the doctor is to look at; null: this machine."""

    group: Word | None = None


class Checked(Model):
    """What the doctor found."""

    healthy: bool
    findings: list[HostFinding]
    checked: float


# --------------------------------------------------------------------------------------- new runs


class Source(Given):
    """Where the code is: a folder here, or a git URL with, maybe, a folder in it."""

    kind: Literal["folder", "git"] = "folder"
    path: Word | None = None
    url: Word | None = None


class Mount(Given):
    """A folder of each host that the container has, too."""

    source: Word
    target: Word
    read_only: bool = False


class Form(Given):
    """A new run. What is null is left to shanty and to the workspace's shanty.toml."""

    name: Word | None = None
    source: Source = Source()
    image: Word | None = None
    machine_type: Word | None = None
    machines: Count | None = None
    ranks: Count | None = None
    master_type: Word | None = None
    on: Word | None = None
    command: Text = ""
    mpi: Word | None = None
    time_limit: Word | None = None
    mounts: list[Mount] = Field(default=[], max_length=100)
    env: dict[Variable, Text] = Field(default={}, max_length=1000)
    tags: list[Tag] = Field(default=[], max_length=100)
    retries: Count | None = None
    priority: Annotated[int, Field(ge=-1000, le=1000)] | None = None
    options: dict[Word, bool | Text | list[Text]] = Field(default={}, max_length=100)


class Changes(Given):
    """Fields of the form that another run of the same job is to have otherwise."""

    changes: Form = Form()


class FieldProblem(Model):
    """What is wrong with a field of the form."""

    field: str
    what: str
    fix: str = ""


class FormPreview(Model):
    """The line that does the same, and what is wrong with the form so far."""

    command: str
    problems: list[FieldProblem]


class FormOption(Model):
    """An option of a target: `words` are all that it takes, if there are any."""

    name: str
    flag: str
    help: str
    kind: Literal["text", "number", "switch", "list"]
    words: list[str]


class TargetForm(Model):
    """The options of runs that go to a target, `--on SCHEME`."""

    scheme: str
    title: str
    options: list[FormOption]


class Suggestions(Model):
    """What the form offers."""

    targets: list[TargetForm]

    types: list[MachineType]
    groups: list[str]
    mpis: list[str]
    images: list[str]
    workspaces: list[str]
