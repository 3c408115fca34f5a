"""Defines what shanty has to know of an MPI: the interface that every flavour fills in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.layout import HostSlots, Layout

MIB = 1 << 20
_RADIX = 64  # hosts; both of Open MPI's launchers start others from there on, Intel MPI's from 128

Choices = Tuple[Tuple[str, ...], ...]
Settings = Tuple[Tuple[str, str], ...]
Environ = Mapping[str, str]


@dataclass(frozen=True)
class Footprint:
    """Bytes on one host, as measured (see the heads of `openmpi` and `hydra`)."""

    shared: int
    shared_a_rank: int
    vital: bool  # ranks die without that shared memory
    address_space: int  # of a rank

    def shared_memory(self, ranks: int) -> int:
        """Returns the size of /dev/shm that so many ranks want."""
        return self.shared + ranks * self.shared_a_rank


def settled(names: Iterable[str], choices: Choices) -> FrozenSet[str]:
    """Returns all variables that are decided once the user has set the variables `names`.

    Each of `choices` has the variables of one decision. A user who sets one of them has made it,
    and a setting of shanty's could only contradict.
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


class Flavour(ABC):
    """One MPI implementation and major version; a value without state.

    The patterns of files (fnmatch) match what other jobs of the same user use as well: a cleanup
    has to ask who still has a file open.
    """

    family: str  # whose command line it has: "openmpi" or "hydra"
    name: str  # its key in FLAVOURS
    title: str  # as people call it
    requirement: str  # for `pip install`
    host_line: str  # of its host file
    library_names: Tuple[str, ...]  # its libmpi in the prefix's lib/, best first
    launcher_names: Tuple[str, ...]  # its launcher in bin/, best first
    no_slots = ""  # of its launcher, where a line asks for more ranks than there are slots
    shared_memory_files: Tuple[str, ...]  # what a killed job leaves behind in /dev/shm
    temporary_files: Tuple[str, ...] = ()  # and in the folder for temporary files, and the scratch
    footprint: Footprint
    kubeflow: str  # its name in the objects of Kubeflow's operators
    to_spawn = ""  # the options of `shanty run` with which ranks can start processes
    spawn_signal = ""  # that ends ranks which do so, or open a port, without these options
    pmi: Tuple[str, ...] = ()  # the kinds of it, as srun names them, by which its ranks find it
    ipv6 = False  # it can launch, and exchange data, where hosts have IPv6 only

    # Variables: those of each decision, which is the user's as soon as one of them is set by the
    # user; those for the networks of the ranks' data, and of the launcher and its daemons.
    choices: Choices = ()
    rank_networks: Tuple[str, ...]
    launch_networks: Tuple[str, ...]
    library_variables: Tuple[str, ...] = ("MPI4PY_LIBMPI",)
    hostfile_variable: str  # the default host file
    session_variable = ""  # a folder for temporary files
    setting_prefixes: Tuple[str, ...] = ()  # of variables that this MPI reads, and not all do
    radix_variable = ""  # how many daemons the launcher starts itself before these start others
    prefix_variables: Tuple[str, ...] = ()  # by which ranks find an installation that was moved
    tells_prefix = False  # these are set in any case
    name_variable = ""  # gives ranks another name of their host than its own
    segment_variables: Tuple[str, ...] = ()  # where shared-memory files are

    # Settings for these cases.
    always: Settings = ()
    shared_cores: Settings = ()
    oversubscribed: Settings = ()
    elastic: Settings = ()  # where ranks may be lost; empty where that ends a run in any case
    without_cma: Settings = ()  # where ranks may not copy from each other's memory
    in_operator: Settings = ()  # in the launcher's pod, beside what Kubeflow's operators set

    def hostfile(self, hosts: Sequence[HostSlots]) -> str:
        """Returns the text of the host file; hosts without slots are left out."""
        return "".join(self.host_line.format(h.name, h.slots) for h in hosts if h.slots > 0)

    @abstractmethod
    def command(self, mpi: Installation, layout: Layout, program: Sequence[str]) -> List[str]:
        """Returns the launcher's whole argv for `program`, the launcher by absolute path.

        The host file named by `layout.hostfile` is used unless that is empty. Without
        `layout.ranks` as many ranks start as there are slots.
        """

    @abstractmethod
    def exporting(self, names: Sequence[str]) -> List[str]:
        """Returns the words of a launcher's line that give ranks its own variables `names`."""

    def environment(
        self, mpi: Installation, layout: Layout, given: Environ, scratch: str
    ) -> Dict[str, str]:
        """Returns the settings that a run adds to the launcher's environment.

        No key of `given` (the user's environment) is in the result, and none that would
        contradict one of them. `scratch` is the absolute path of a folder for temporary files
        of this run alone, short enough for sockets in it; it need not exist on any host.
        """
        decided = settled(given, self.choices)
        settings = dict(self.always)
        settings.update(dict.fromkeys(self.library_variables, mpi.library))
        if self.session_variable:
            settings[self.session_variable] = scratch
        if layout.hostfile:
            settings[self.hostfile_variable] = layout.hostfile
        settings.update(self.transport(layout, decided))
        if self.radix_variable and len(layout.hosts) > _RADIX:  # only the lead host reaches all
            settings[self.radix_variable] = str(len(layout.hosts))
        if layout.shares_cores:
            settings.update(self.shared_cores)
        if layout.oversubscribe:
            settings.update(self.oversubscribed)
        if layout.elastic:
            settings.update(self.elastic)
        if self.tells_prefix:
            settings.update(self.moved(mpi.prefix))
        return {name: value for name, value in settings.items() if name not in decided}

    @abstractmethod
    def transport(self, layout: Layout, decided: FrozenSet[str]) -> Dict[str, str]:
        """Returns those of `environment` for how ranks reach each other.

        The variables `decided` are the user's.
        """

    def named_daemon(self, command: str, name: str) -> str:
        """Returns the command of a launcher's daemon for a host that is to be called `name`.

        For hosts that share one host name, where the launcher could not tell them apart.
        """
        return command

    @abstractmethod
    def interfaces(self, layout: Layout, names: Sequence[str], given: Environ) -> Dict[str, str]:
        """Returns the settings for a host that has the networks of `layout` at interfaces `names`.

        Best first; names may differ from host to host. What all hosts have alike is in
        `environment`. No key of `given` is in the result, and none that would contradict one.
        """

    @abstractmethod
    def ports(self, given: Environ) -> Optional[Tuple[int, int]]:
        """Returns the first and last TCP port to which the user's settings hold the ranks' data.

        None where the system chooses, or where it cannot be made out.
        """

    def moved(self, prefix: str) -> Dict[str, str]:
        """Returns the settings for ranks on a host where the installation is at `prefix`.

        A launcher may hand on those of its own host, where that is elsewhere.
        """
        return dict.fromkeys(self.prefix_variables, prefix)

    def segments(self, folder: str) -> Dict[str, str]:
        """Returns the settings that put shared-memory files into `folder`, where there are any.

        Apart from `environment` because the ranks cannot start unless `folder` (an absolute
        path, as /dev/shm/NAME) exists on every host beforehand.
        """
        return dict.fromkeys(self.segment_variables, folder)
