"""What the ranks tell each other in a cycle: a few flags, and a bit for each request they know.

All of it goes through one reduction (AND): a bit that is missing from any rank is missing from
what all hear. Starts MPI.
"""

from __future__ import annotations

from array import array

from mpi4py import MPI

KNOWN = 1  # all that I wait for has a number
CALM = 2  # I need no notices of the others
STAYS = 4  # I do not shut down
JOINED = 8  # I have called join()
WAITS = 16  # I wait for something
PLAIN = KNOWN | CALM | STAYS


class Words:
    """For one communicator, and one thread at a time."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm = comm
        self._said, self._heard = array("Q", [0]), array("Q", [0])
        self._number = 1  # of words that are under way

    def say(self, flags: int, offer: int, known: int) -> MPI.Request:
        """Begin to tell the flags, and the bits of `offer`, of which there are `known`."""
        self._number = words = 1 + (known + 63) // 64
        if len(self._said) < words:
            self._said, self._heard = array("Q", [0] * words), array("Q", [0] * words)
        said = flags | offer << 64
        memoryview(self._said).cast("B")[: 8 * words] = said.to_bytes(8 * words, "little")
        out, into = ((each, words, MPI.UINT64_T) for each in (self._said, self._heard))
        return self._comm.Iallreduce(out, into, MPI.BAND)

    def heard(self) -> tuple[int, int]:
        """The flags and the bits that all have told, once the request is complete."""
        told = memoryview(self._heard).cast("B")[: 8 * self._number]
        heard = int.from_bytes(told, "little")
        return heard & ((1 << 64) - 1), heard >> 64
