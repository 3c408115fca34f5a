"""Where a run is: `site.json` in its directory, which is read and written here only.

A run without this file is this machine's own. Every other run has one: it names the target that
owns the run and, once they are known, its hosts. No content of the file is an error. What cannot
be read is kept as it is when the file is written again, as are the keys of a newer version and
those of the target itself (`own`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple, Union

from shanty.runtime.errors import NotFoundError
from shanty.runtime.rundir import RunDir, read_json, write_json

Json = Union[None, bool, int, float, str, List["Json"], Dict[str, "Json"]]

_NAME = "site.json"
_SSH = "ssh"  # the target of a file that names none


class Host(NamedTuple):
    """One host of a run, as the user names it.

    `name` is what the user wrote, without user and slots, and what messages show; ssh resolves
    it (aliases in ~/.ssh/config count). `slots` None: as many as it has cores. `config` is an
    ssh configuration file of its own, "" for the user's. For a pod, `pod` is
    "CONTEXT/NAMESPACE".
    """

    name: str
    user: Optional[str] = None
    port: Optional[int] = None
    slots: Optional[int] = None
    config: str = ""
    pod: str = ""

    @property
    def login(self) -> str:
        """The destination for ssh: NAME or USER@NAME."""
        return f"{self.user}@{self.name}" if self.user else self.name


class Submitter(NamedTuple):
    """The process that submits a run, as `control.agents_record` describes it.

    `host` and `pids` (the namespace of `pid`) are None where they were not recorded.
    """

    pid: int
    born: str
    host: Optional[str] = None
    pids: Optional[str] = None
    boot: str = ""

    @classmethod
    def from_record(cls, record: Json) -> Optional[Submitter]:
        """Read such a record; None where it is damaged."""
        process = record.get("submitter") if isinstance(record, dict) else None
        if not isinstance(record, dict) or not isinstance(process, dict):
            return None
        pid, born = process.get("pid"), process.get("born")
        if not isinstance(pid, int) or not isinstance(born, str):
            return None
        host, pids = record.get("host"), record.get("pids")
        return cls(
            pid,
            born,
            host if isinstance(host, str) else None,
            pids if isinstance(pids, str) else None,
            str(record.get("boot") or ""),
        )

    def record(self) -> Dict[str, Json]:
        """Return the record."""
        where = {"host": self.host, "pids": self.pids}
        return {
            "submitter": {"pid": self.pid, "born": self.born},
            **{key: value for key, value in where.items() if value is not None},
            "boot": self.boot,
        }


class Site(NamedTuple):
    """The content of `site.json`.

    `name` is the name of the run in the queue of its target, "" before it is queued. `within` is
    true for a run in hosts that its user had already. `machines` are those that the queue for
    machines has given to the run, None for a run that was never in this queue. `submitter` is
    the process that prepares the hosts, before the lead host knows of the run. `own` has all
    other keys.
    """

    target: str = _SSH
    hosts: Tuple[Host, ...] = ()
    name: str = ""
    within: bool = False
    machines: Optional[Tuple[str, ...]] = None
    submitter: Optional[Submitter] = None
    own: Mapping[str, Json] = {}

    @property
    def names_hosts(self) -> bool:
        """True where the file names hosts, even if they cannot be read."""
        return bool(self.hosts or self.own.get("hosts"))

    @classmethod
    def from_json(cls, values: Mapping[str, Json]) -> Site:
        """Read the content of a file."""
        name = values.get("name")
        site = cls(
            target=str(values.get("target", _SSH)),
            hosts=_hosts(values.get("hosts")),
            name=str(name) if isinstance(name, (str, int)) else "",
            within=bool(values.get("within")),
            machines=_texts(values.get("machines")),
            submitter=Submitter.from_record(values.get("submitter")),
        )
        own = {
            key: value
            for key, value in values.items()
            if key not in cls._fields or key == "own" or (value and not getattr(site, key))
        }
        return site._replace(own=own)

    def to_json(self) -> Dict[str, Json]:
        """Return the content of the file."""
        values: Dict[str, Json] = dict(self.own)
        if self.target != _SSH:
            values["target"] = self.target
        if self.hosts:
            values["hosts"] = [host._asdict() for host in self.hosts]
        if self.name:
            values["name"] = self.name
        if self.within:
            values["within"] = True
        if self.machines is not None:
            values["machines"] = [*self.machines]
        if self.submitter is not None:
            values["submitter"] = self.submitter.record()
        return values


def exists(folder: Path) -> bool:
    """Return whether the run in that folder has such a file; nothing is read."""
    return (folder / _NAME).exists()


def read(run: RunDir) -> Optional[Site]:
    """Return where a run is; None for one of this machine's own, which has no file.

    A damaged file counts as empty: `Site()`.
    """
    values = read_json(run.site)
    if values is None:
        return Site() if exists(run.path) else None
    return Site.from_json(values)


def write(run: RunDir, site: Site) -> None:
    """Write down where a run is, in one step."""
    write_json(run.site, site.to_json())


def hosts_of(run: RunDir) -> Tuple[Host, ...]:
    """Return the hosts of a run that is on hosts; NotFoundError where they are not known."""
    hosts = (read(run) or Site()).hosts
    if not hosts:
        raise NotFoundError(f"{run.site} is damaged, so the run's hosts are not known")
    return hosts


def _hosts(value: Json) -> Tuple[Host, ...]:
    """Read a list of hosts; none where one of them cannot be read."""
    hosts = [host_of(each) for each in value] if isinstance(value, list) else []
    found = tuple(host for host in hosts if host is not None)
    return found if len(found) == len(hosts) else ()


def host_of(value: Json) -> Optional[Host]:
    """Read a host as `Host._asdict` has it; None for everything else."""
    if not isinstance(value, dict) or not value.keys() <= {*Host._fields}:
        return None
    name, config, pod = value.get("name"), value.get("config", ""), value.get("pod", "")
    if not (isinstance(name, str) and isinstance(config, str) and isinstance(pod, str)):
        return None
    user, port, slots = value.get("user"), value.get("port"), value.get("slots")
    if not isinstance(user, (str, type(None))):
        return None
    if not (isinstance(port, (int, type(None))) and isinstance(slots, (int, type(None)))):
        return None
    return Host(name, user, port, slots, config, pod)


def _texts(value: Json) -> Optional[Tuple[str, ...]]:
    """Read a list of strings; None for everything else."""
    if not isinstance(value, list):
        return None
    found = tuple(each for each in value if isinstance(each, str))
    return found if len(found) == len(value) else None
