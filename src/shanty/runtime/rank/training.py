"""Notices the first training step of a process, and reports which world it is in by then.

With other launchers N processes can train the same model N times where each is in a world of its
own. `diagnosis/separate_training.py` decides by these reports. A hook gets the imported module and
the `RankProcess`, as in `import_hooks`; it does not slow down the steps measurably.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import zlib

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable, Tuple

    World = Tuple[int, int]  # rank and size

# The methods that take the first step, by their module: class and method.
_STEPS = {
    "xgboost.core": (("Booster", "update"), ("Booster", "boost")),
    "lightgbm.basic": (("Booster", "update"),),
    "catboost.core": (("CatBoost", "_fit"),),
    "keras.src.backend.torch.trainer": (("TorchTrainer", "fit"), ("TorchTrainer", "train_step")),
    "keras.src.backend.jax.trainer": (("JAXTrainer", "fit"),),
    "keras.src.backend.tensorflow.trainer": (("TensorFlowTrainer", "fit"),),
    "tf_keras.src.engine.training": (("Model", "fit"),),
    "tensorflow.python.eager.backprop": (("GradientTape", "gradient"),),
    "tensorflow.python.training.optimizer": (("Optimizer", "compute_gradients"),),
    "mlx.optimizers.optimizers": (("Optimizer", "apply_gradients"),),
}
_NAMES = {
    "torch": "PyTorch", "xgboost": "XGBoost", "lightgbm": "LightGBM", "catboost": "CatBoost",
    "keras": "Keras", "tf_keras": "Keras", "tensorflow": "TensorFlow", "mlx": "MLX", "jax": "JAX",
}  # fmt: skip
_OTHER_MPI = ("horovod.torch", "horovod.tensorflow", "horovod.tensorflow.keras", "horovod.keras")

_KERAS = (
    "import shanty.keras as hvd, call hvd.init(), and compile the model with "
    "hvd.DistributedOptimizer(optimizer)"
)
_ADVICE = {
    "torch": 'call torch.distributed.init_process_group("mpi") and wrap the model: '
    "DistributedDataParallel(model)",
    "xgboost": "import shanty.xgboost as xgb",
    "lightgbm": "import shanty.lightgbm as lgb",
    "catboost": "CatBoost cannot share one training among processes: take one rank (-n 1)",
    "keras": _KERAS,
    "tf_keras": _KERAS.replace("shanty.keras", "shanty.tensorflow.keras"),
    "tensorflow": "import shanty.tensorflow as hvd, call hvd.init(), and take the gradients of "
    "hvd.DistributedGradientTape(tape)",
    "mlx": 'call mx.distributed.init(backend="mpi"), and nn.average_gradients(gradients) each step',
    "jax": "call jax.distributed.initialize() before all else, and shard batches over "
    "jax.devices()",
}
# Libraries above a framework, with advice of their own.
_ABOVE = {
    "accelerate": "let Accelerate use the CPUs: Accelerator(cpu=True), or "
    "TrainingArguments(use_cpu=True)",
    "lightning": 'Trainer(strategy="ddp", devices=…, num_nodes=…) with as many as there are ranks',
    "pytorch_lightning": 'Trainer(strategy="ddp", devices=…, num_nodes=…) with as many as there '
    "are ranks",
}
# A script that asks for its rank may be a sweep, in which each rank trains by itself. A script that
# sets such a variable, or asks for one without a value here, does not count.
_ASKS_RANK = re.compile(
    r"""["'](RANK|OMPI_COMM_WORLD_RANK|PMI_RANK|PMIX_RANK|SLURM_PROCID|MV2_COMM_WORLD_RANK|"""
    r"""PALS_RANKID|JSM_NAMESPACE_RANK|FLUX_TASK_RANK)["'](?!\s*\]\s*=(?!=))"""
    r"""|\bshanty\.rank\b|\bfrom\s+shanty\s+import\b[^\n]*\brank\b"""
)
_FOREIGN = ("/site-packages/", "/dist-packages/")
_LONGEST = 1 << 20  # bytes of a source file that are looked at
_UNKNOWN = (AttributeError, TypeError, ValueError, RuntimeError, ImportError)  # another version's


def torch(optimizer: Any, process: Any, *_: object) -> None:
    """Watch for the first step of any optimizer of PyTorch."""
    register = getattr(optimizer, "register_optimizer_step_post_hook", None)
    if register is None:
        return
    reported = False

    def after_step(*_: object) -> None:
        nonlocal reported
        # Traced code must not see us; the test stays, since a change would trace the code again.
        if optimizer.torch.compiler.is_compiling() or reported:
            return
        reported = True
        _tell("torch", process)

    register(after_step)
    sys.modules["_shanty_instrumentation"].hook_children()  # torch.multiprocessing.spawn's


def jax(api: Any, process: Any, *_: object) -> None:
    """Watch for the first gradient that JAX computes, after which it cannot join a world."""
    reported = False

    def watched(make: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(make)
        def made(*args: Any, **kwargs: Any) -> Any:
            gradient = make(*args, **kwargs)

            @functools.wraps(gradient)
            def first(*args: Any, **kwargs: Any) -> Any:
                nonlocal reported
                if not reported:
                    reported = True
                    _tell("jax", process)
                return gradient(*args, **kwargs)

            return gradient if reported else first

        return made

    api.grad, api.value_and_grad = watched(api.grad), watched(api.value_and_grad)


def trainer(module: Any, process: Any, *_: object) -> None:
    """Watch for the first call of a method in `_STEPS`."""
    for owner, method in _STEPS[module.__name__]:
        kind = getattr(module, owner, None)
        if kind is not None and method in vars(kind):
            tell = functools.partial(_tell, module.__name__.split(".")[0], process)
            setattr(kind, method, _FirstCall(kind, method, tell))


class _FirstCall:
    """Replaces a method until it is first looked up on an object, in order to be called.

    A wrapper would add a frame between the caller and the method, and warnings would name it.
    """

    def __init__(self, kind: Any, method: str, then: Callable[..., None]) -> None:
        self._kind, self._method, self._then = kind, method, then
        self._original = vars(kind)[method]

    def __get__(self, owner: Any, kind: Any = None) -> Any:
        if owner is not None and vars(self._kind).get(self._method) is self:
            setattr(self._kind, self._method, self._original)
            self._then(owner)
        return self._original.__get__(owner, kind)


def _tell(framework: str, process: Any, trained: Any = None) -> None:
    """Report that this process trains, with its rank and world."""
    above = [name for name in _ABOVE if name in sys.modules]
    try:
        rank, size = _world(process, trained)
        advice = _ABOVE[above[0]] if above else _ADVICE[framework]
        version = str(getattr(sys.modules.get(framework), "__version__", ""))
        asked = _asked()
        unset = sorted(name for name in asked if name and name not in os.environ)
        place = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
        # With a variable that is not set, the script has replaced those that are.
        misled = bool(unset) and place != (str(process.rank), str(process.size))
        known = any(not name or os.environ.get(name) == str(process.rank) for name in asked)
        asks = known and not misled
    except _UNKNOWN:
        return  # no report is better than a wrong one
    process.tell(
        "training",
        framework=" with ".join([f"{_NAMES[framework]} {version}".strip(), *above]),
        as_rank=rank,
        as_size=size,
        asks_rank=asks,
        unset=", ".join(unset),
        args=zlib.crc32("\0".join(sys.argv[1:]).encode(errors="replace")),
        fix=advice,
    )


def _world(process: Any, trained: Any) -> World:
    """Return the rank and size of the first world of several ranks that a framework is in."""
    accelerate = sys.modules.get("accelerate.state")
    shared = accelerate.PartialState._shared_state if accelerate is not None else {}
    if "num_processes" in shared:  # without GPUs it makes a group and ignores it
        return shared["process_index"], shared["num_processes"]
    found = [look() for look in (_c10d, _rpc, _jax, _xgboost, _tensorflow, _horovod)]
    group = getattr(process, "mlx_group", None)
    found.append((group.rank(), group.size()) if group is not None else None)
    ray = sys.modules.get("ray")
    if getattr(trained, "_network", False) or (ray is not None and ray.is_initialized()):
        found.append((process.rank, process.size))  # LightGBM's sockets, a worker of Ray
    return next((each for each in found if each is not None and each[1] > 1), (0, 1))


def _c10d() -> World | None:
    group = sys.modules.get("torch.distributed.distributed_c10d")
    if group is None or not group.is_initialized():
        return None
    return group.get_rank(), group.get_world_size()


def _rpc() -> World | None:
    api = sys.modules.get("torch.distributed.rpc.api")
    if api is None or not api._is_current_rpc_agent_set():
        return None
    agent = api._get_current_rpc_agent()
    return agent.get_worker_info().id, len(agent.get_worker_infos())


def _jax() -> World | None:
    state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
    return (state.process_id, state.num_processes) if state and state.num_processes else None


def _xgboost() -> World | None:
    collective = sys.modules.get("xgboost.collective")
    if collective is None:
        return None
    return collective.get_rank(), collective.get_world_size()


def _tensorflow() -> World | None:
    context = getattr(sys.modules.get("tensorflow.python.eager.context"), "_context", None)
    server = context and (context._server_def or context._collective_ops_server_def)
    if not server:
        return None
    return server.task_index, sum(len(job.tasks) for job in server.cluster.job)


def _horovod() -> World | None:
    """Return the world of an installed Horovod, which has a libmpi of its own, or none."""
    for name in _OTHER_MPI:
        module = sys.modules.get(name)
        if module is not None and module.is_initialized():
            return module.rank(), module.size()
    return None


def _asked() -> set[str]:
    """Return the variables for a rank's number that the script, or a module of the user, names.

    "" stands for `shanty.rank`.
    """
    found: set[str] = set()
    own = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
    library = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or not path.endswith(".py"):
            continue
        path = os.path.abspath(path)
        if path.startswith((own, library)) or any(part in path for part in _FOREIGN):
            continue
        try:
            with open(path, errors="replace") as file:
                text = file.read(_LONGEST)
        except OSError:
            continue
        found.update(_ASKS_RANK.findall(text))
    if not getattr(sys.modules.get("__main__"), "__file__", None):  # python -c CODE
        for word in getattr(sys, "orig_argv", ()):
            found.update(_ASKS_RANK.findall(word))
    return found
