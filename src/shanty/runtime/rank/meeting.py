"""Reports that a rank waits for the others in a framework's rendezvous, and what it looks for.

Loaded by path, as all code in a rank, once the script has imported such a framework. From outside a
rank that connects again and again looks busy, so it reports where it is.
`diagnosis/rendezvous.py` explains why ranks do not meet. A hook gets the imported module, the
`RankProcess`, and a function that returns whether this process is the rank and not a helper of it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Description = dict[str, Any]

_FOREIGN = ("/site-packages/", "/dist-packages/", "/shanty/runtime/", "<")
_LONGEST = 1 << 20  # bytes of a source file that are searched
_SOON = 1.0  # seconds; a shorter wait for a key is not reported
_SHOWN = 3  # keys
# Another version's, or what the script gives a function that will refuse it.
_UNKNOWN = (AttributeError, TypeError, ValueError, KeyError, IndexError, OSError)


def announced(
    process: Any,
    claim: Callable[[], bool],
    what: str,
    function: Callable[..., Any],
    describe: Callable[..., Description] = lambda *_, **__: {},
) -> Callable[..., Any]:
    """Return `function`, a rendezvous called `what`, such that the controller knows who is in it.

    `describe` gets the same arguments, and returns `size`, `place`, `address`, `origin`, `ours`
    and `serves` of a `Meeting`, as far as they are known.
    """

    @functools.wraps(function)
    def meeting(*args: Any, **kwargs: Any) -> Any:
        if process.size < 2 or process.meets or not claim():
            return function(*args, **kwargs)
        told: Description = {}
        with contextlib.suppress(*_UNKNOWN):
            told = describe(*args, **kwargs)
        process.tell("meeting", what=what, **told)
        process.meets, met = True, False
        try:
            result = function(*args, **kwargs)
            met = True
            return result
        finally:
            process.meets = False
            process.tell("met", failed=not met)

    return meeting


class _LongCalls:
    """Announces calls of the main thread that last longer than a moment. Most return at once.

    A thread looks each second while there are any. In other threads than the main one, a script
    may wait for news all the time.
    """

    def __init__(self, process: Any, claim: Callable[[], bool]) -> None:
        self._process, self._claim = process, claim
        self._lock = threading.Lock()
        self._call: Callable[[], Description] | None = None  # describes the current one
        self._reported = self._watched = False

    def announced(
        self, function: Callable[..., Any], describe: Callable[..., Description]
    ) -> Callable[..., Any]:
        """Return `function`, a method, such that the controller knows who waits long in it."""

        @functools.wraps(function)
        def waiting(own: Any, *args: Any, **kwargs: Any) -> Any:
            process, main = self._process, threading.main_thread()
            if threading.current_thread() is not main or process.size < 2 or process.meets:
                return function(own, *args, **kwargs)
            if not self._claim():
                return function(own, *args, **kwargs)
            what, met = f"{type(own).__name__}.{function.__name__}", False
            self._begin(lambda: {"what": what, **describe(*args, **kwargs)})
            try:
                result = function(own, *args, **kwargs)
                met = True
                return result
            finally:
                self._end(met)

        return waiting

    def _begin(self, call: Callable[[], Description]) -> None:
        with self._lock:
            self._call = call
            if not self._watched:
                self._watched = True
                threading.Thread(target=self._watch, daemon=True).start()

    def _end(self, met: bool) -> None:
        with self._lock:
            reported, self._reported, self._call = self._reported, False, None
        if reported:
            self._process.tell("met", failed=not met)

    def _watch(self) -> None:
        before = None
        while True:
            time.sleep(_SOON)
            with self._lock:
                call = self._call
                if call is before is None:
                    self._watched = False
                    return
                if call is not None and call is before and not self._reported:
                    self._reported = True
                    with contextlib.suppress(*_UNKNOWN):
                        self._process.tell("meeting", **call())
                before = call


def torch(c10d: Any, process: Any, claim: Callable[[], bool]) -> None:
    """Announce `torch.distributed.init_process_group` and `new_group`."""
    init, new_group = (getattr(c10d, name, None) for name in ("init_process_group", "new_group"))
    if init is None or new_group is None:
        return

    def describe(
        _backend: Any = None,
        init_method: str | None = None,
        _timeout: Any = None,
        world_size: int = -1,
        rank: int = -1,
        store: Any = None,
        *_: Any,
        **__: Any,
    ) -> Description:
        scheme, rest = [*(init_method or "env://").split("://", 1), ""][:2]
        place, query = [*rest.split("?", 1), ""][:2]
        asked = dict(each.split("=", 1) for each in query.split("&") if "=" in each)
        number = int(rank if rank >= 0 else asked.get("rank", os.environ.get("RANK", -1)))
        size = asked.get("world_size", os.environ.get("WORLD_SIZE", 0))
        told = {"place": number, "size": int(world_size if world_size > 0 else size)}
        if type(store).__name__ == "HashStore":  # the memory of one process
            own = {
                "address": "a HashStore that each rank has for itself",
                "origin": "the script: store=HashStore()",
            }
            return {**told, **own}
        if store is not None:
            return told
        if scheme == "env":
            return {**told, **_master(process)}
        return {**told, "address": place, "origin": f"init_method in {_line(place)}"}

    what = "torch.distributed.init_process_group"
    c10d.init_process_group = announced(process, claim, what, init, describe)
    # All ranks make each group together, those that are not in it, too.
    c10d.new_group = announced(process, claim, "torch.distributed.new_group", new_group)
    _torch_stores(sys.modules.get("torch._C._distributed_c10d"), process, claim)


def _torch_stores(module: Any, process: Any, claim: Callable[[], bool]) -> None:
    """Announce waits in torch's stores: for as many clients as a TCPStore wants, or for a key."""
    store, tcp = (getattr(module, name, None) for name in ("Store", "TCPStore"))
    if store is None or tcp is None:
        return

    def clients(
        _self: Any,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        _timeout: Any = None,
        wait_for_workers: bool = True,
        *_: Any,
        **__: Any,
    ) -> Description:
        # Only the rank that serves the store waits for the others.
        size = world_size if is_master and wait_for_workers else None
        told = {"size": size or 0, "address": f"{host_name}:{port}", "serves": is_master}
        here = ("localhost", "127.0.0.1", "::1", os.uname().nodename)
        ours = process.began_with.get("SHANTY_ADDRESSES", "").partition(",")[0]
        ours = ours.rpartition(":")[0].strip("[]")
        if ours and host_name != ours and not (ours.startswith("127.") and host_name in here):
            told.update(origin=_line(host_name), ours=ours)
        return told

    def keys(wanted: Any, *_: Any, **__: Any) -> Description:
        names = [wanted] if isinstance(wanted, str) else list(wanted)
        more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
        return {"keys": ", ".join(f"'{name[:80]}'" for name in names[:_SHOWN]) + more}

    def others(_key: str, world_size: int, *_: Any) -> Description:
        return {"size": world_size}

    calls = _LongCalls(process, claim)
    tcp.__init__ = announced(process, claim, "TCPStore", tcp.__init__, clients)
    for name in ("get", "multi_get", "wait", "queue_pop", "barrier"):
        method = getattr(store, name, None)
        if method is not None:  # as old versions have it
            describe = others if name == "barrier" else keys
            setattr(store, name, calls.announced(method, describe))


def torch_rpc(rpc: Any, process: Any, claim: Callable[[], bool]) -> None:
    """Announce `torch.distributed.rpc.init_rpc`."""
    init = getattr(rpc, "init_rpc", None)
    if init is None:
        return

    def describe(
        _name: str, _backend: Any = None, rank: int = -1, world_size: int | None = None, *_: Any
    ) -> Description:
        size = world_size or int(os.environ.get("WORLD_SIZE", 0))
        place = rank if rank >= 0 else int(os.environ.get("RANK", -1))
        return {"size": size, "place": place, **_master(process)}

    rpc.init_rpc = announced(process, claim, "torch.distributed.rpc.init_rpc", init, describe)


def jax(distributed: Any, process: Any, claim: Callable[[], bool]) -> None:
    """Announce `jax.distributed.initialize`."""
    state = getattr(distributed, "State", None)
    if state is None:
        return

    def describe(
        _state: Any,
        coordinator_address: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        *_: Any,
        **__: Any,
    ) -> Description:
        told = {
            "size": process.size if num_processes is None else num_processes,
            "place": process.rank if process_id is None else process_id,
        }
        ours = process.began_with.get("SHANTY_ADDRESSES", "").partition(",")[0]
        name = "JAX_COORDINATOR_ADDRESS"
        address = coordinator_address or os.environ.get(name) or ours
        told["address"] = address
        if address != ours:
            told["ours"], told["origin"] = ours, _origin(process, name, address)
        return told

    state.initialize = announced(
        process, claim, "jax.distributed.initialize", state.initialize, describe
    )


def tensorflow(module: Any, process: Any, claim: Callable[[], bool]) -> None:
    """Announce the first start of TensorFlow's cluster, as by MultiWorkerMirroredStrategy."""
    context: Any = getattr(module, "Context", None)
    start: Any = getattr(context, "ensure_initialized", None)
    if start is None:
        return

    def describe(self: Any) -> Description:
        server = self._collective_ops_server_def or self._server_def
        names = [task for job in server.cluster.job for task in job.tasks.values()]
        told = {"size": len(names), "place": server.task_index, "address": ""}
        first = json.loads(process.began_with.get("TF_CONFIG", "{}")).get("cluster", {})
        ours = next(iter(first.get("worker", [])), "")
        if ours not in names:
            origin = _origin(process, "TF_CONFIG", names[0])
            told.update(address=names[0], ours=ours, origin=origin)
        return told

    joining = announced(process, claim, "the start of TensorFlow's cluster", start, describe)

    def ensure_initialized(self: Any) -> Any:
        server = getattr(self, "_collective_ops_server_def", None)
        if server is None or getattr(self, "_initialized", True):
            return start(self)
        context.ensure_initialized = start  # it is called for every operation
        return joining(self)

    context.ensure_initialized = functools.wraps(start)(ensure_initialized)


def xgboost(module: Any, process: Any, claim: Callable[[], bool]) -> None:
    """Announce `xgboost.collective.init`, which waits for the other workers of its tracker."""
    collective = getattr(module, "collective", None)
    init = getattr(collective, "init", None)
    if collective is None or init is None:
        return

    def describe(**words: Any) -> Description:
        names = {name.lower(): value for name, value in words.items()}
        uri, port = names.get("dmlc_tracker_uri", ""), names.get("dmlc_tracker_port", "")
        if not uri:
            raise ValueError("it waits for nobody")
        return {"address": f"{uri}:{port}", "size": getattr(process, "workers_of_tracker", 0)}

    def initialise(**words: Any) -> Any:
        tracked = any(name.lower() == "dmlc_tracker_uri" for name in words)
        return (joining if tracked else init)(**words)

    joining = announced(process, claim, "xgboost.collective.init", init, describe)
    collective.init = functools.wraps(init)(initialise)


def xgboost_tracker(module: Any, process: Any, *_: Any) -> None:
    """Note for how many workers a tracker in this rank waits."""
    tracker = getattr(module, "RabitTracker", None)
    start: Any = getattr(tracker, "__init__", None)
    if tracker is None or start is None:
        return

    @functools.wraps(start)
    def starting(self: Any, n_workers: int, *args: Any, **kwargs: Any) -> None:
        process.workers_of_tracker = n_workers
        start(self, n_workers, *args, **kwargs)

    tracker.__init__ = starting


def _master(process: Any) -> Description:
    """Return the address by MASTER_ADDR and MASTER_PORT, and who has set it if not shanty."""
    began, names = process.began_with, ("MASTER_ADDR", "MASTER_PORT")
    host, port = (os.environ.get(name, "") for name in names)
    changed = [name for name in names if os.environ.get(name, "") != began.get(name, "")]
    first = began.get("SHANTY_ADDRESSES", "").partition(",")[0].rpartition(":")[0].strip("[]")
    told = {"address": f"{host}:{port}"}
    if changed:
        found = _line(changed[0])
        told["origin"] = f"{' and '.join(changed)} in {found}"
        told["ours"] = f"{began.get('MASTER_ADDR', first)}:{began.get('MASTER_PORT', '')}"
    elif first and host != first:
        told["origin"] = "MASTER_ADDR in the environment of the run"
        told["ours"] = first
    return told


def _origin(process: Any, name: str, address: str) -> str:
    """Return where an address was set that may come from the variable `name`."""
    value = os.environ.get(name)
    if value is None or address not in value:
        return _line(address)
    if value == process.began_with.get(name):
        return f"{name} in the environment of the run"
    return f"{name} in {_line(name)}"


def _line(text: str) -> str:
    """Return the line of the user's files on the stack that contains `text`: "x.py:2"."""
    frame: Any = sys._getframe(1)
    paths: list[str] = []
    while frame is not None:
        path = frame.f_code.co_filename
        if path not in paths and not any(part in path for part in _FOREIGN):
            paths.append(path)
        frame = frame.f_back
    for path in paths:
        with contextlib.suppress(OSError), open(path, errors="replace") as file:
            for number, line in enumerate(file.read(_LONGEST).splitlines(), 1):
                if text in line and not line.lstrip().startswith("#"):
                    return f"{os.path.basename(path)}:{number}"
    return "the script"
