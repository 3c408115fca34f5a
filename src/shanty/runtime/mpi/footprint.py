"""Lists what an MPI takes of a host beside the program's own memory.

Measured with the wheels of Open MPI 5.0.11 and 4.1.8, MPICH 5.0.2, Intel MPI 2021.18.1, on one
host, with an allreduce of 4 MB:

- Open MPI takes 72 KiB of /dev/shm a rank, but looks for 16 MiB (5) or 4 MiB (4.1) of free room
  first; where that is missing it does without, and is slower.
- MPICH takes 1 MiB a rank in one file and 4.2 MiB in others; of 8 ranks some die by SIGSEGV or
  SIGBUS below 6 MiB a rank, of 4 below 7.
- Intel MPI takes 64 KiB a rank, and up to 3.6 MiB with the first large message; below that its
  ranks die by SIGBUS.
- The launcher of Open MPI wants 5 to 6 descriptors a rank; of 8 ranks none starts with 48 of
  them (4.1 hangs then), and all do with 64. Hydra starts them with 48.
- Open MPI 4.1 makes two files of 4 MiB a host in the folder for temporary files.
- MPI_Init with Python takes 0.17 to 0.27 GB of address space, with Intel MPI 2.4 GB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Mapping

_MIB = 1 << 20


@dataclass(frozen=True)
class Footprint:
    """Bytes on one host: of shared memory in all and a rank, of address space a rank.

    `vital` says that ranks die without that shared memory.
    """

    shared: int
    shared_a_rank: int
    vital: bool
    address_space: int

    def shared_memory(self, ranks: int) -> int:
        """Returns what so many ranks want in /dev/shm."""
        return self.shared + ranks * self.shared_a_rank


FOOTPRINTS: Mapping[str, Footprint] = {
    "openmpi5": Footprint(16 * _MIB, _MIB // 8, False, 512 * _MIB),
    "openmpi4": Footprint(4 * _MIB, _MIB // 8, False, 512 * _MIB),
    "mpich": Footprint(0, 8 * _MIB, True, 512 * _MIB),
    "intel": Footprint(0, 4 * _MIB, True, 2560 * _MIB),
}
