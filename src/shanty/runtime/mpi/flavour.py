"""Defines what shanty has to know of an MPI: the interface that every flavour fills in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.layout import HostSlots, Layout


@dataclass(frozen=True)
class RankVariables:
    """The environment variables in which a launched process finds its place in the world."""

    rank: str
    size: str
    local_rank: str
    local_size: str


@dataclass(frozen=True)
class LeftoverFiles:
    """fnmatch patterns (file names, no folders) of what a killed job leaves behind.

    `shared_memory` is to be looked for in /dev/shm, `temporary` in the folder for temporary
    files and in the scratch folder that the run was given. The patterns match what other jobs
    of the same user use as well: a cleanup has to ask who still has a file open.
    """

    shared_memory: Tuple[str, ...]
    temporary: Tuple[str, ...]


Choices = Tuple[Tuple[str, ...], ...]
Settings = Tuple[Tuple[str, str], ...]


def settled(names: Iterable[str], choices: Choices) -> FrozenSet[str]:
    """Returns all that is decided for the user once he has set the variables `names` himself.

    Each of `choices` has the variables of one decision: whoever sets one of them has made it,
    and what shanty would set for it could only contradict.
    """
    given = frozenset(names)
    made = (choice for choice in choices if not given.isdisjoint(choice))
    return given.union(*made)


def port_range(text: str) -> Optional[Tuple[int, int]]:
    """Reads the ports of "20000-20999" or "20000:20999"; None for anything else."""
    first, _, last = text.replace(":", "-").partition("-")
    if not (first.isdigit() and last.isdigit() and 0 < int(first) <= int(last) < 65536):
        return None
    return int(first), int(last)


@dataclass(frozen=True)
class Flavour(ABC):
    """One MPI implementation and major version; a frozen value without state.

    `name` is the key in FLAVOURS ("openmpi5", "openmpi4", "mpich" or "intel"), `title` what
    people call it, `family` says whose command line it has ("openmpi" or "hydra"). `marker` is
    the path inside a prefix that only this flavour has, `requirement` what `pip install` takes.
    `library_names` are the file names of its libmpi in the prefix's lib/, `launcher_names` those
    of its launcher in bin/, best first. `to_spawn` are the options of `shanty run` with which
    ranks can start processes, "" for none; `ipv6` is true when it can launch, and exchange data,
    where hosts have IPv6 only. `choices` has the variables of each decision that is the user's
    when he sets one of them; `rank_networks` and `launch_networks` are the variables that name
    the interfaces or networks of the ranks' data, and those of the launcher and its daemons.
    """

    family: ClassVar[str]
    library_names: ClassVar[Tuple[str, ...]]
    rank_variables: ClassVar[RankVariables]
    choices: ClassVar[Choices]

    name: str
    title: str
    marker: str
    requirement: str
    launcher_names: Tuple[str, ...]
    leftover_files: LeftoverFiles
    to_spawn: str
    ipv6: bool
    rank_networks: Tuple[str, ...]
    launch_networks: Tuple[str, ...]

    @abstractmethod
    def hostfile(self, hosts: Sequence[HostSlots]) -> str:
        """Returns the text of the host file; hosts without slots are left out."""

    @abstractmethod
    def command(
        self, installation: Installation, layout: Layout, program: Sequence[str]
    ) -> List[str]:
        """Returns the launcher's whole argv for `program`, the launcher by absolute path.

        The host file named by `layout.hostfile` is used unless that is empty. Without
        `layout.ranks` as many ranks start as there are slots.
        """

    @abstractmethod
    def environment(
        self, installation: Installation, layout: Layout, given: Mapping[str, str], scratch: str
    ) -> Dict[str, str]:
        """Returns the settings that a run adds to the launcher's environment.

        No key of `given` (the user's environment) is in the result, and none that would
        contradict one of them. `scratch` is the absolute path of a folder for temporary files
        of this run alone, short enough for sockets in it; it need not exist on any host.
        """

    @abstractmethod
    def interfaces(
        self, layout: Layout, names: Sequence[str], given: Mapping[str, str]
    ) -> Dict[str, str]:
        """Returns the settings for a host that has the networks of `layout` at interfaces `names`.

        Best first; names may differ from host to host. What all hosts have alike is in
        `environment`. No key of `given` is in the result, and none that would contradict one.
        """

    @abstractmethod
    def ports(self, given: Mapping[str, str]) -> Optional[Tuple[int, int]]:
        """Returns the first and last TCP port to which the user's settings hold the ranks' data.

        None where the system chooses, or where it cannot be made out.
        """

    @abstractmethod
    def moved(self, prefix: str) -> Dict[str, str]:
        """Returns the settings for ranks on a host where the installation is at `prefix`.

        A launcher may hand on those of its own host, where that is elsewhere.
        """

    @abstractmethod
    def segments(self, folder: str) -> Dict[str, str]:
        """Returns the settings that put shared-memory files into `folder`, where there are any.

        Apart from `environment` because the ranks cannot start unless `folder` (an absolute
        path, as /dev/shm/NAME) exists on every host beforehand.
        """
