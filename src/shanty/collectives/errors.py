"""The errors of collectives. Importing this starts no MPI."""

from __future__ import annotations

from typing import NamedTuple


class CommunicationError(RuntimeError):
    """An operation on MPI failed; says which, in which group, on which rank."""


class CommunicationTimeoutError(CommunicationError, TimeoutError):
    """A wait ran past its time limit. The operation itself may still be under way."""


class MismatchError(CommunicationError, ValueError):
    """The ranks of a group called different things at the same point. Raised on all of them,
    before anything was communicated; the group can be used again.
    """


class Errors(NamedTuple):
    """The classes that a channel raises: a front end may have its own, derived from these."""

    failed: type[CommunicationError] = CommunicationError
    late: type[CommunicationTimeoutError] = CommunicationTimeoutError
    mismatch: type[MismatchError] = MismatchError


class HorovodInternalError(RuntimeError):
    """A collective failed: the ranks disagreed, one of them left, or none came for too long."""


class ArgumentError(HorovodInternalError, ValueError):
    """An argument is wrong by itself. Scripts expect the one or the other of its bases."""


class UnsupportedError(ArgumentError, NotImplementedError):
    """What is asked for has a meaning, and no implementation."""


class DuplicateNameError(HorovodInternalError, ValueError):
    """A request of the same name is under way on this rank."""
