"""Hydra, the launcher of MPICH and of Intel MPI.

Measured with the wheels of MPICH 5.0.2 and Intel MPI 2021.18.1, two cores:

- Both yield the core of a waiting rank by themselves. MPICH's heavier kind
  (MPIR_CVAR_ENABLE_HEAVY_YIELD) wins sixfold when other programs keep the cores busy but costs
  100 us an operation when none do; it is the user's choice.
- Nothing makes MPICH start sooner on one host (0.1 s).
- Intel MPI does not know what `-bind-to` means: it takes any value and ignores it. Only
  I_MPI_PIN and its like bind.
- Intel MPI reads `host:N` in a host file only as `-machinefile`, which in turn makes it ignore
  `-ppn`; as `-f` and as I_MPI_HYDRA_HOST_FILE every host gets as many ranks as it has cores,
  or $I_MPI_PERHOST. In `-hosts a:2` it takes no notice of the 2.
- MPICH dies of a division by zero at `host:0`.
- MPICH writes /tmp/hydra_hwloc_xmlfile_* wherever TMPDIR points; Intel MPI leaves nothing.
- Over libfabric, a communicator of Intel MPI on which something came by MPI_Mrecv makes
  MPI_Comm_disconnect die by SIGSEGV. mpi4py.futures ends like that; without MPI4PY_RC_RECV_MPROBE
  mpi4py receives its objects by MPI_Recv.
- What `-iface` and its variable name is the launcher's alone: the ranks of both choose for
  themselves, MPICH's by UCX, over all interfaces at once, and Intel's by libfabric. The daemons on
  the other hosts do not mind that theirs has another name.
- Neither takes a host by its IPv6 address: what is before the first ":" is its name.
- Neither of them uses ssh for the machine that it runs on, by any of its names.
- MPICH takes 1 MiB of /dev/shm a rank in one file and 4.2 MiB in others; of 8 ranks some die by
  SIGSEGV or SIGBUS below 6 MiB a rank, of 4 below 7. Intel MPI takes 64 KiB a rank, and up to
  3.6 MiB with the first allreduce of 4 MB; below that its ranks die by SIGBUS.
- Of 8 ranks all start with 48 descriptors. MPI_Init with Python takes 0.17 to 0.27 GB of address
  space, with Intel MPI 2.4 GB.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Dict, FrozenSet, List, Mapping, Optional, Sequence, Tuple

from shanty.runtime.mpi.flavour import MIB, Environ, Flavour, Footprint, Settings, port_range
from shanty.runtime.mpi.installation import Installation
from shanty.runtime.mpi.layout import Layout

_PINNED: Settings = (("I_MPI_PIN", "1"),)


class Hydra(Flavour):
    """One of the MPIs that are launched by Hydra; what differs is in the fields."""

    family = "hydra"
    pmi = ("pmi2",)
    host_line = "{}:{}\n"
    library_names = ("libmpi.so.12", "libmpi.12.dylib")
    tells_prefix = True

    slots_flag: str  # names a host file whose `host:N` count
    per_host_flag = "-f"  # names one beside which `-ppn` counts
    per_host_variable = ""  # says the same as `-ppn`
    extra_ssh_variable: str  # arguments for ssh
    over_fabrics = ("FI_TCP_IFACE",)  # of `rank_networks`, where there is a faster one than TCP's
    port_variable: str  # a range of the ranks' ports
    hosts_have_slots: bool  # `-hosts a:2` counts
    host_for_each: bool  # the programs of a line may have hosts of their own
    bind_to_flag: bool  # `-bind-to` counts
    binding: Settings = ()  # where it does not: for N cores a rank, with "{}" for N
    bindings: Mapping[str, Settings] = MappingProxyType({})  # and for each part of a machine
    one_host: Settings = ()
    spawn_variable = ""  # by which a user asks for ranks that can start others
    spawning: Settings = ()
    many_hosts: Settings = ()
    by_libfabric: Settings = ()

    def command(self, mpi: Installation, layout: Layout, program: Sequence[str]) -> List[str]:
        """Returns the launcher's whole argv for `program`, the launcher by absolute path."""
        ranks = layout.ranks if layout.ranks is not None else layout.slots
        argv = [mpi.launcher]
        if layout.hostfile:
            flag = self.slots_flag if layout.ranks_per_host is None else self.per_host_flag
            argv += [flag, layout.hostfile]
        if layout.ranks_per_host is not None:
            argv += ["-ppn", str(layout.ranks_per_host)]
        argv += ["-n", str(ranks)]
        if layout.cpus_per_rank is not None and not layout.oversubscribe:
            if self.bind_to_flag:
                argv += ["-bind-to", f"core:{layout.cpus_per_rank}"]
            for name, value in self.binding:
                argv += ["-genv", name, value.format(layout.cpus_per_rank)]
        return [*argv, *program]

    def exporting(self, names: Sequence[str]) -> List[str]:
        """Returns the words of a launcher's line that give ranks its own variables `names`."""
        return ["-genvlist", ",".join(names)] if names else []

    def transport(self, layout: Layout, decided: FrozenSet[str]) -> Dict[str, str]:
        """Returns the settings for the ranks a host, and for what they talk over."""
        settings: Dict[str, str] = {}
        slots = {host.slots for host in layout.hosts if host.slots > 0}
        if layout.hostfile and self.per_host_variable and len(slots) == 1:
            settings[self.per_host_variable] = str(slots.pop())
        if self.spawn_variable in decided:
            return {**settings, **dict(self.by_libfabric), **dict(self.spawning)}
        return {**settings, **dict(self.one_host if layout.local_only else self.by_libfabric)}

    def interfaces(self, layout: Layout, names: Sequence[str], given: Environ) -> Dict[str, str]:
        """Returns the settings for a host that has the networks of `layout` at interfaces `names`.

        Of several the best one only: none of them deals data out by how fast each is.
        """
        ranks = self.rank_networks if layout.tcp_only else self.over_fabrics
        wanted = (*self.launch_networks, *ranks)
        return {name: names[0] for name in wanted if name not in given}

    def ports(self, given: Environ) -> Optional[Tuple[int, int]]:
        """Returns the first and last TCP port to which the user's settings hold the ranks' data."""
        return port_range(given.get(self.port_variable, ""))


class Mpich(Hydra):
    """MPICH itself, from version 3 on."""

    name = "mpich"
    kubeflow = "MPICH"
    without_cma = (("MPIR_CVAR_CH4_CMA_ENABLE", "0"),)
    setting_prefixes = ("MPIR_CVAR_", "MPICH_")
    title = "MPICH"
    requirement = "mpich"
    launcher_names = ("mpiexec.hydra", "mpirun", "mpiexec")
    shared_memory_files = ("mpich_shm_*",)
    temporary_files = ("hydra_hwloc_xmlfile_*", "mpich-ipc-fd-sock-*")
    footprint = Footprint(0, 8 * MIB, vital=True, address_space=512 * MIB)
    slots_flag = "-f"
    hostfile_variable = "HYDRA_HOST_FILE"
    extra_ssh_variable = "HYDRA_LAUNCHER_EXTRA_ARGS"
    launch_networks = ("HYDRA_IFACE",)
    rank_networks = ("UCX_NET_DEVICES", "FI_TCP_IFACE")  # its netmods: UCX, or libfabric
    port_variable = "UCX_TCP_PORT_RANGE"
    hosts_have_slots = True
    host_for_each = False
    bind_to_flag = True


class Intel(Hydra):
    """Intel MPI, whose Hydra has settings of its own."""

    name = "intel"
    kubeflow = "Intel"
    setting_prefixes = ("I_MPI_",)
    title = "Intel MPI"
    requirement = "impi-rt==2021.18.1"  # 2021.19.0 wants a libfabric that PyPI does not have
    launcher_names = ("mpiexec.hydra", "mpiexec")  # its mpirun is a shell script that needs PATH
    shared_memory_files = ("Intel_MPI_*",)
    temporary_files = ("Intel_MPI_*", "impi_scm-*")
    footprint = Footprint(0, 4 * MIB, vital=True, address_space=2560 * MIB)
    slots_flag = "-machinefile"
    hostfile_variable = "I_MPI_HYDRA_HOST_FILE"
    per_host_variable = "I_MPI_PERHOST"
    extra_ssh_variable = "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"
    prefix_variables = ("I_MPI_ROOT",)
    radix_variable = "I_MPI_HYDRA_BRANCH_COUNT"
    launch_networks = ("I_MPI_HYDRA_IFACE",)
    rank_networks = ("FI_TCP_IFACE",)
    port_variable = "I_MPI_PORT_RANGE"
    hosts_have_slots = False
    host_for_each = True
    bind_to_flag = False
    binding = (("I_MPI_PIN", "1"), ("I_MPI_PIN_CELL", "core"), ("I_MPI_PIN_DOMAIN", "{}:compact"))
    bindings = MappingProxyType({
        "none": (("I_MPI_PIN", "0"),),
        "hwthread": (*_PINNED, ("I_MPI_PIN_CELL", "unit"), ("I_MPI_PIN_DOMAIN", "1")),
        "core": (*_PINNED, ("I_MPI_PIN_DOMAIN", "core")),
        "socket": (*_PINNED, ("I_MPI_PIN_DOMAIN", "socket")),
        "numa": (*_PINNED, ("I_MPI_PIN_DOMAIN", "numa")),
        "board": (*_PINNED, ("I_MPI_PIN_DOMAIN", "node")),
        "l1cache": (*_PINNED, ("I_MPI_PIN_DOMAIN", "cache1")),
        "l2cache": (*_PINNED, ("I_MPI_PIN_DOMAIN", "cache2")),
        "l3cache": (*_PINNED, ("I_MPI_PIN_DOMAIN", "cache3")),
        "user": (*_PINNED, ("I_MPI_PIN_PROCESSOR_LIST", "{}")),
    })  # fmt: skip
    one_host = (("I_MPI_FABRICS", "shm"),)
    many_hosts = (("I_MPI_FABRICS", "shm:ofi"),)
    spawn_variable = "I_MPI_SPAWN"
    # Through shm spawned ranks cannot be reached, and with shm:ofi they hang on some machines.
    spawning = (("I_MPI_FABRICS", "ofi"),)
    by_libfabric = (("MPI4PY_RC_RECV_MPROBE", "false"),)
    shared_cores = (("I_MPI_PIN", "0"), ("I_MPI_THREAD_YIELD", "2"))
    to_spawn = "-e I_MPI_SPAWN=on"
    spawn_signal = "SIGSEGV"
