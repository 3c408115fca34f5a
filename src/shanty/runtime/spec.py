"""What is asked for (`JobSpec`) and where a run stands (`Status`), as kept in its directory."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from typing import Any, Dict, Mapping, Optional, Tuple, Union

from shanty.runtime import platform
from shanty.runtime.old_jobs import fields_of, options_of


@dataclass(frozen=True)
class Script:
    """A Python script, run once a rank by the job's interpreter."""

    path: str
    args: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Module:
    """A Python module, run once a rank as `python -m` would."""

    name: str
    args: Tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """Any executable, run once a rank."""

    argv: Tuple[str, ...]


@dataclass(frozen=True)
class Raw:
    """The user's own launcher line, run once on the lead host; `shell`: argv[0] is for sh -c."""

    argv: Tuple[str, ...]
    shell: bool = False


_LARGEST = 1e15  # no number of a status comes near it
REGISTRY_PASSWORD = "SHANTY_REGISTRY_PASSWORD"  # the variable that is read by default
Command = Union[Script, Module, Program, Raw]
_KINDS = {"script": Script, "module": Module, "program": Program, "raw": Raw}


@dataclass(frozen=True)
class JobSpec:
    """What a user asks for, before it is known where it runs.

    `ranks` and `ranks_per_host` None: as many as there are slots. `cpus_per_rank` cores are
    bound to each rank; None binds nothing and shares the cores for threads. `gpus_per_rank` and
    `memory_per_rank` (bytes) are what hosts must have, and nothing is set apart. `time_limit` and
    `start_timeout` are seconds; `workdir` is absolute; `mpi` is a flavour, a prefix or None.
    `on` (hosts and groups, as typed) and `hostfile` (an absolute path) say on which hosts; both
    None: this machine. `packages` is "check", "sync" or "none" there; None is check, else
    sync. `source` is a git URL or an archive in place of the workspace. `on_stall` is "warn" or
    "stop", `stall_after` the seconds without progress that count as a stall, 0 for never; None:
    as the settings have it. `alone`, for ranks that each train by themselves, is "warn", "stop" or
    "ok"; None: as the settings have it. `retries` is how many further attempts are made when a
    host was lost, the launcher failed or a rank was killed. `tf1`: what scripts import as
    tensorflow has the names of TensorFlow 1. `log_to` is where else the values go that a script
    logs: tensorboard, mlflow, wandb. `profile`: a trace of all ranks is made. `no_tty`: programs
    write into pipes. `elastic` is the number of ranks with which the run goes on when others are
    lost; None: it ends then. `spares` are processes beside its ranks, which wait for the places of
    lost ones.
    Ranks are forked from a Python on their host that has the modules `warm` imported.

    With an `image`, ranks are in a container of it on each host, by the engine `runtime` (None:
    whichever is there); `master_image` is that of the lead host, where it has another. `mounts` are
    a source on the host, a target in the container, and "rw" or "ro". `gpus` are "all", "none" or
    their numbers; None: all. `registry_password` says where the password is, which is kept
    nowhere: a file, or env:VARIABLE. `mpi` may be "image" then.

    `options` are those that the target of the job declares, by their names; only what was asked
    for is in them. Targets that give hosts to a run give it `nodes` of them.

    `inputs` is a folder whose files each rank finds in $SHANTY_INPUTS: a copy, made when the run
    is written down.

    `machines` are machine types, and how many of each; the first machine of the first type is the
    lead host. A run waits for them: one of a higher `priority` before others. `share`: other runs
    that share may be on them as well.
    """

    command: Command
    ranks: Optional[int] = None
    ranks_per_host: Optional[int] = None
    cpus_per_rank: Optional[int] = None
    gpus_per_rank: Optional[int] = None
    memory_per_rank: Optional[int] = None
    oversubscribe: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = "."
    python: Optional[str] = None
    mpi: Optional[str] = None
    time_limit: Optional[float] = None
    start_timeout: float = 60.0
    debug_rank: Optional[int] = None
    name: Optional[str] = None
    tags: Tuple[str, ...] = ()
    on: Optional[str] = None
    hostfile: Optional[str] = None
    packages: Optional[str] = None
    source: Optional[str] = None
    on_stall: Optional[str] = None
    stall_after: Optional[float] = None
    retries: int = 0
    tf1: bool = False
    alone: Optional[str] = None
    options: Mapping[str, Any] = field(default_factory=dict)
    nodes: Optional[int] = None
    image: Optional[str] = None
    master_image: Optional[str] = None
    runtime: Optional[str] = None
    mounts: Tuple[Tuple[str, str, str], ...] = ()
    gpus: Optional[str] = None
    registry_user: Optional[str] = None
    registry_password: Optional[str] = None
    machines: Tuple[Tuple[str, int], ...] = ()
    priority: int = 0
    share: bool = False
    log_to: Tuple[str, ...] = ()
    profile: bool = False
    inputs: Optional[str] = None
    no_tty: bool = False
    elastic: Optional[int] = None
    warm: Tuple[str, ...] = ()
    spares: int = 0

    @property
    def processes(self) -> Optional[int]:
        """How many the launcher starts: ranks and spares; None where it is not known yet."""
        return self.ranks + self.spares if self.ranks else None

    @property
    def secrets(self) -> Tuple[str, ...]:
        """The variables that may hold the registry's password: nothing of a run gets them."""
        kind, _, name = (self.registry_password or "").partition(":")
        return (REGISTRY_PASSWORD, name) if kind == "env" else (REGISTRY_PASSWORD,)

    def to_json(self) -> Dict[str, Any]:
        """The job as plain JSON."""
        values = asdict(self)
        kind = next(name for name, cls in _KINDS.items() if isinstance(self.command, cls))
        values["command"] = {"kind": kind, **values["command"]}
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> JobSpec:
        """The job that `to_json` wrote; ValueError, KeyError or TypeError when it is damaged."""
        now = fields_of(values)
        known = {name: _tuples(value) for name, value in _known(cls, now).items()}
        command = {name: _tuples(value) for name, value in dict(values["command"]).items()}
        known["command"] = _KINDS[command.pop("kind")](**command)
        known["options"] = options_of(values)
        return cls(**known)

    def given(self) -> Dict[str, Any]:
        """What was asked for beside the command: fields that differ from their defaults.

        The options of its target are among them, by their names.
        """
        plain = JobSpec(self.command)
        found: Dict[str, Any] = {}
        for name in self.__dataclass_fields__:
            if name == "options":
                found.update(self.options)
            elif getattr(self, name) != getattr(plain, name):
                found[name] = getattr(self, name)
        return found

    def with_values(self, values: Mapping[str, Any]) -> JobSpec:
        """The job with other values, by the names that `given` has."""
        own = {name: each for name, each in values.items() if name in self.__dataclass_fields__}
        options = {name: each for name, each in values.items() if name not in own}
        return replace(self, **own, options={**self.options, **options})

    def defaulting(self, values: Mapping[str, Any]) -> JobSpec:
        """The job with these values where it asks for nothing."""
        given = self.given()
        return self.with_values({name: each for name, each in values.items() if name not in given})

    def words(self) -> Tuple[str, ...]:
        """The command as one would type it."""
        if isinstance(self.command, Script):
            return (self.command.path, *self.command.args)
        if isinstance(self.command, Module):
            return ("-m", self.command.name, *self.command.args)
        return self.command.argv


class State(str, Enum):
    """Where a run stands; the states after RUNNING are final."""

    PENDING = "pending"  # written down, no agent yet
    STARTING = "starting"  # the launcher is at work
    RUNNING = "running"  # every rank joined
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    LOST = "lost"  # its agents are gone and left no word

    @property
    def final(self) -> bool:
        """True when the run cannot change any more."""
        return self in (State.SUCCEEDED, State.FAILED, State.STOPPED, State.LOST)


# Causes of a failure that are not in the script: out of memory; the hosts were given to another
# user; a host, or what runs on it, is gone; the lead host is cut off, and others go on without it.
MEMORY, PREEMPTED, HOST, CUT_OFF = "memory", "preempted", "host", "cut off"


@dataclass(frozen=True)
class Failure:
    """Why a run failed: the first cause, not what followed from it.

    `rank` and `host` are None where no rank is to blame; `lines` are the last that the rank
    (or the launcher) wrote. `cause` is MEMORY, PREEMPTED or HOST where another attempt might do
    better, else empty.
    """

    what: str
    why: str = ""
    fix: str = ""
    rank: Optional[int] = None
    host: Optional[str] = None
    signal: Optional[str] = None
    lines: Tuple[str, ...] = ()
    log: str = ""
    cause: str = ""


@dataclass(frozen=True)
class Status:
    """Where a run stands.

    `up` ranks have started, `joined` of them were seen by MPI itself in one world of `ranks`
    (which is None until the launcher's world is known). Times are seconds since 1970; `stalled`
    is the time since which no rank has made progress, None while they do; `activity` is what the
    ranks do while they report nothing, as far as it can be seen from outside. `alone` is set where
    ranks each train by themselves. `not_finite` names the numbers logged by the script that have
    become NaN or infinite, and the first rank. `network` is the last trouble of the network between
    the hosts that their kernels counted, with its fix. `attempt` counts from 1; `reason` is why
    there is another one, or why the run has no hosts yet. `trouble` is a problem with
    the connection to a run that goes on. `lost` says which ranks an elastic run has lost, and why,
    `returned` which of them were started again, or had their places taken by one of its `spares`,
    which are counted apart from the ranks.

    A clock with the date may jump, so durations are measured by clocks that never do: `born` is
    the time since the submitting machine was `boot`ed, at `created`; `began` is that of the lead
    host at `started`; `lasted` is the number of seconds from there to the end.
    """

    state: State = State.PENDING
    ranks: Optional[int] = None
    up: int = 0
    joined: int = 0
    created: float = 0.0
    started: Optional[float] = None
    ended: Optional[float] = None
    exit_code: Optional[int] = None
    failure: Optional[Failure] = None
    stalled: Optional[float] = None
    attempt: int = 1
    reason: str = ""
    alone: Optional[Failure] = None
    not_finite: str = ""
    network: str = ""
    activity: str = ""
    trouble: str = ""
    lost: Tuple[str, ...] = ()
    returned: Tuple[str, ...] = ()
    spares: int = 0
    born: Optional[float] = None
    boot: str = ""
    began: Optional[float] = None
    lasted: Optional[float] = None

    @classmethod
    def new(cls, ranks: Optional[int], spares: int = 0) -> Status:
        """The status of a run that is being made here, now."""
        now, born, boot = time.time(), time.monotonic(), platform.boot_id()
        return cls(created=now, ranks=ranks, spares=spares, born=born, boot=boot)

    def took(self) -> float:
        """Seconds from its start to its end; from its creation to now while it goes on."""
        if self.lasted is not None:
            return self.lasted
        if self.ended is not None:
            return max(0.0, self.ended - (self.started or self.created or self.ended))
        if self.born is not None and self.boot == platform.boot_id():
            return time.monotonic() - self.born
        return max(0.0, time.time() - self.created) if self.created else 0.0

    def to_json(self) -> Dict[str, Any]:
        """The status as plain JSON."""
        return {**asdict(self), "state": self.state.value}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Status:
        """The status that `to_json` wrote; ValueError or TypeError when it is damaged."""
        known = _known(cls, values)
        known["state"] = State(known.get("state"))
        numbers = (
            *("created", "started", "ended", "ranks", "up", "joined", "exit_code", "stalled"),
            *("spares", "born", "began", "lasted"),
        )
        for key in numbers:
            if not isinstance(known.get(key), (int, float, type(None))):
                raise TypeError(f"{key} is {known[key]!r}")
            if not -_LARGEST < (known.get(key) or 0) < _LARGEST:  # nor is NaN
                raise ValueError(f"{key} is {known[key]!r}")
        for name in ("lost", "returned"):
            known[name] = tuple(map(str, known.get(name, ())))
        for key in ("failure", "alone"):
            if known.get(key) is not None:
                failure = _known(Failure, known[key])
                known[key] = Failure(**{**failure, "lines": tuple(failure.get("lines", ()))})
        return cls(**known)


def _tuples(value: Any) -> Any:
    """A value of JSON with tuples in the place of lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _known(cls: Any, values: Mapping[str, Any]) -> Dict[str, Any]:
    """Those of `values` that `cls` has a field for: a newer shanty may have written more."""
    return {key: values[key] for key in cls.__dataclass_fields__ if key in values}
