"""Work on several hosts side by side, and its progress."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import IO, BinaryIO, TypeVar

from shanty.launch.transport.rpc_client import RpcClient
from shanty.runtime.errors import PrepareError, ShantyError

_AT_ONCE = 64  # hosts that are served side by side
_BLOCK = 1 << 20
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Step:
    """The progress on one host: `done` of `total` bytes or packages of `what`."""

    host: str
    what: str
    done: int
    total: int
    unit: str = "bytes"

    def __str__(self) -> str:
        amount = f"{self.done} of {self.total} {self.unit}"
        if self.unit == "bytes":
            amount = f"{self.done / 1e6:.0f} of {self.total / 1e6:.0f} MB"
        return f"{self.host}: {self.what}, {amount}" if self.host else f"{self.what}, {amount}"


Progress = Callable[[Step], None]
Say = Callable[[str], None]  # gets a sentence for the user


def side_by_side(clients: Sequence[RpcClient], work: Callable[[RpcClient], R]) -> dict[str, R]:
    """The results of `work` for each RPC client, by the host's name, in their order.

    The work on all hosts is completed, even if it fails on one; then the failure is raised, or a
    PrepareError that names all failures.
    """
    results: dict[str, R] = {}
    failures: list[tuple[str, ShantyError]] = []
    pool = ThreadPoolExecutor(min(_AT_ONCE, len(clients)) or 1)
    try:
        for client, future in [(client, pool.submit(work, client)) for client in clients]:
            try:
                results[client.host.name] = future.result()
            except ShantyError as error:
                failures.append((client.host.name, error))
    except BaseException:  # Ctrl-C: do not wait for a silent host
        for client in clients:
            client.close(0.0)
        raise
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if len(failures) == 1:
        raise failures[0][1]
    if failures:
        fixes = dict.fromkeys(error.fix for _, error in failures if error.fix)
        raise PrepareError(
            f"{len(failures)} hosts could not be prepared: {', '.join(n for n, _ in failures)}",
            "; ".join(f"{name}: {error.what}" for name, error in failures),
            "; ".join(fixes),
        ) from failures[0][1]
    return results


def read_and_report(file: BinaryIO | IO[bytes], step: Step, progress: Progress) -> Iterator[bytes]:
    """The file in pieces; `progress` gets how much is sent, added to the step's `done`."""
    done = step.done
    progress(step)
    while block := file.read(_BLOCK):
        yield block
        done += len(block)
        progress(replace(step, done=done))
