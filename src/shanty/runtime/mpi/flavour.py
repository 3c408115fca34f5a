"""What shanty has to know of an MPI: the interface that every flavour fills in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, FrozenSet, Iterable, List, Mapping, Optional, Protocol, Sequence, Tuple

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
class Residue:
    """fnmatch patterns (file names, no folders) of what a killed job leaves behind.

    `shared_memory` is to be looked for in /dev/shm, `temporary` in the folder for temporary
    files and in the scratch folder that the run was given. The patterns match what other jobs
    of the same user use as well: a sweep has to ask who still has a file open.
    """

    shared_memory: Tuple[str, ...]
    temporary: Tuple[str, ...]


Choices = Tuple[Tuple[str, ...], ...]


def settled(names: Iterable[str], choices: Choices) -> FrozenSet[str]:
    """All that is decided for the user as soon as he has set the variables `names` himself.

    Each of `choices` has the variables of one decision: whoever sets one of them has made it,
    and what shanty would set for it could only contradict.
    """
    given = frozenset(names)
    found = set(given)
    for choice in choices:
        if not given.isdisjoint(choice):
            found.update(choice)
    return frozenset(found)


def port_range(text: str) -> Optional[Tuple[int, int]]:
    """The ports of "20000-20999" or "20000:20999"; None for anything else."""
    first, _, last = text.replace(":", "-").partition("-")
    if not (first.isdigit() and last.isdigit() and 0 < int(first) <= int(last) < 65536):
        return None
    return int(first), int(last)


class Flavour(Protocol):
    """One MPI implementation and major version; a frozen value without state."""

    @property
    def name(self) -> str:
        """The key in FLAVOURS: "openmpi5", "openmpi4", "mpich" or "intel"."""

    @property
    def title(self) -> str:
        """How people call it, as "Open MPI 5"."""

    @property
    def family(self) -> str:
        """Whose command line it has: "openmpi" or "hydra"."""

    @property
    def library_names(self) -> Tuple[str, ...]:
        """File names of the libmpi to load, best first, looked for in the prefix's lib/."""

    @property
    def launcher_names(self) -> Tuple[str, ...]:
        """File names of the launcher, best first, looked for in the prefix's bin/."""

    @property
    def marker(self) -> str:
        """The path inside a prefix that only this flavour has."""

    @property
    def requirement(self) -> str:
        """What `pip install` has to be given to get this flavour."""

    @property
    def rank_variables(self) -> RankVariables:
        """Where a launched process finds rank, world size, local rank and local size."""

    @property
    def residue(self) -> Residue:
        """What a killed job leaves behind."""

    @property
    def to_spawn(self) -> str:
        """The options of `shanty run` with which ranks can start processes; "" for none."""

    @property
    def ipv6(self) -> bool:
        """True when it can launch, and exchange data, where hosts have IPv6 only."""

    @property
    def choices(self) -> Choices:
        """The variables of each decision that is the user's when he sets one of them."""

    @property
    def rank_networks(self) -> Tuple[str, ...]:
        """The variables that name the interfaces or networks of the ranks' data."""

    @property
    def launch_networks(self) -> Tuple[str, ...]:
        """The variables that name those of the launcher and its daemons."""

    def hostfile(self, hosts: Sequence[HostSlots]) -> str:
        """The text of the host file; hosts without slots are left out."""

    def command(
        self, installation: Installation, layout: Layout, program: Sequence[str]
    ) -> List[str]:
        """The launcher's whole argv for `program`, the launcher by absolute path.

        The host file named by `layout.hostfile` is used unless that is empty. Without
        `layout.ranks` as many ranks start as there are slots.
        """

    def environment(
        self, installation: Installation, layout: Layout, given: Mapping[str, str], scratch: str
    ) -> Dict[str, str]:
        """The settings that a run adds to the launcher's environment.

        No key of `given` (the user's environment) is in the result, and none that would
        contradict one of them. `scratch` is the absolute path of a folder for temporary files
        of this run alone, short enough for sockets in it; it need not exist on any host.
        """

    def interfaces(
        self, layout: Layout, names: Sequence[str], given: Mapping[str, str]
    ) -> Dict[str, str]:
        """The settings for a host on which the networks of `layout` are the interfaces `names`.

        Best first; names may differ from host to host. What all hosts have alike is in
        `environment`. No key of `given` is in the result, and none that would contradict one.
        """

    def ports(self, given: Mapping[str, str]) -> Optional[Tuple[int, int]]:
        """The first and last TCP port to which the user's settings hold the ranks' data.

        None where the system chooses, or where it cannot be made out.
        """

    def moved(self, prefix: str) -> Dict[str, str]:
        """The settings for ranks on a host where the installation is at `prefix`.

        A launcher may hand on those of its own host, where that is elsewhere.
        """

    def segments(self, folder: str) -> Dict[str, str]:
        """The settings that put shared-memory files into `folder`, empty where there are none.

        Apart from `environment` because the ranks cannot start unless `folder` (an absolute
        path, as /dev/shm/NAME) exists on every host beforehand.
        """
