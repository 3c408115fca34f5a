"""What is known of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from shanty.runtime.diagnosis.rendezvous import Meeting


@dataclass
class Rank:
    """The state of one rank; times are the controller's clock in seconds."""

    rank: int
    host: str = ""
    started: float = 0.0
    joined: Optional[float] = None
    plain: bool = False
    library: str = ""
    library_flavour: str = ""
    seen: float = 0.0  # when its library was
    loaded_only: bool = False  # the library is there, but MPI_Init may not have been reached
    linked: bool = False  # it is a compiled program that names the library
    probed: bool = False  # it joined for a package that only looks whether there is an MPI
    leaves: bool = False  # it has called MPI_Finalize, which waits for all
    finalized: bool = False
    finished: Optional[float] = None  # when its script came to its end
    spawning: bool = False  # it has asked MPI for processes of its own
    ended: Optional[float] = None
    code: Optional[int] = None
    why: str = ""
    fix: str = ""
    place: str = ""  # the line of its script that failed
    forked: str = ""  # the line that forked a process after MPI_Init
    failed: Optional[float] = None
    oom: int = 0  # bytes that its host may use, where it ran out of them
    meeting: Optional[Meeting] = None  # the rendezvous of a framework in which it waits
    missed: Optional[Meeting] = None  # the last one, which it left by an error

    @property
    def at_fault(self) -> bool:
        """True when the rank itself went wrong: it raised, or ended with something but 0."""
        return self.failed is not None
