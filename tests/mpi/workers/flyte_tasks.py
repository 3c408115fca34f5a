"""A workflow file as people write them: tasks of MPIJob and HorovodJob beside ordinary ones."""

import os
import signal
import time
from pathlib import Path

from flytekit import Resources, task, workflow
from flytekit.core.base_task import IgnoreOutputs
from flytekit.exceptions.user import FlyteRecoverableException
from flytekit.types.directory import FlyteDirectory
from flytekit.types.file import FlyteFile
from flytekitplugins.kfmpi import HorovodJob, Launcher, MPIJob, RunPolicy, Worker


def job(workers=2, slots=1, command=None, **more):
    launcher = Launcher(replicas=1, command=command)
    return MPIJob(launcher=launcher, worker=Worker(replicas=workers), slots=slots, **more)


def world():
    from mpi4py import MPI

    return MPI.COMM_WORLD


@task
def numbers(count: int) -> list[int]:
    print("numbers, in process", os.getpid(), flush=True)
    return list(range(count))


@task(task_config=job(), environment={"FOO": "bar"})
def total(numbers: list[int]) -> float:
    here = world()
    print(
        f"rank {here.rank} of {here.size} on {os.uname().nodename} {os.environ['FOO']}", flush=True
    )
    return float(here.allreduce(sum(numbers[here.rank :: here.size])))


@workflow
def sums(count: int = 10) -> float:
    return total(numbers=numbers(count=count))


def begun(log: str) -> int:
    """Which time it is that the task begins."""
    here = world()
    if here.rank == 0:
        with Path(log).open("a") as file:
            file.write("begun\n")
    here.barrier()
    return len(Path(log).read_text().splitlines())


@task(task_config=job(), retries=3)
def recovers(log: str) -> int:
    time_now = begun(log)
    if time_now < 3 and world().rank == 1:
        raise FlyteRecoverableException(f"attempt {time_now} is none")
    return time_now


@task(task_config=job(), retries=1)
def killed(log: str) -> int:
    time_now = begun(log)
    if time_now == 1 and world().rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    world().barrier()
    return time_now


@task(task_config=job(), retries=3)
def has_a_bug(log: str) -> int:
    if begun(log) and world().rank == 1:
        raise ValueError("a bug")
    return 1


@task(task_config=job(), cache=True, cache_version="1")
def cached(log: str, number: int) -> int:
    begun(log)
    return number * world().size


@workflow
def caching(log: str, number: int = 21) -> int:
    return cached(log=log, number=number)


@task(task_config=job())
def only_rank_0() -> str:
    here = world()
    if here.rank:
        raise IgnoreOutputs("not mine")
    return f"of {here.size}"


@task(task_config=job())
def only_rank_1() -> str:
    if not world().rank:
        raise IgnoreOutputs("not mine")
    return "lost"


@task(task_config=job())
def copies(text: FlyteFile) -> tuple[FlyteFile, FlyteDirectory]:
    here = world()
    content = Path(text).read_text()
    place = Path(f"made-{here.rank}")
    place.mkdir(exist_ok=True)
    (place / "part.txt").write_text(content.upper())
    Path("whole.txt").write_text(f"{content} {here.size}")
    return "whole.txt", FlyteDirectory(str(place))


@task
def reads(whole: FlyteFile, parts: FlyteDirectory) -> str:
    return f"{Path(whole).read_text()}, {Path(parts, 'part.txt').read_text()}"


@workflow
def files(text: FlyteFile) -> str:
    whole, parts = copies(text=text)
    return reads(whole=whole, parts=parts)


@task(task_config=job(workers=3), requests=Resources(cpu="64", mem="1Gi"))
def many_cores() -> int:
    return world().size


@task(task_config=job(workers=500), requests=Resources(cpu="900m"))
def many_parts_of_cores() -> int:
    return world().size


@task(task_config=job(), requests=Resources(mem="900Ti"))
def much_memory() -> int:
    return world().size


@task(task_config=job(), limits=Resources(gpu="16"))
def many_gpus() -> int:
    return world().size


@task(task_config=job(run_policy=RunPolicy(active_deadline_seconds=4)))
def endless() -> int:
    time.sleep(60)
    return 1


@task(task_config=job(command=["mpirun", "-np", "2", "sh", "-c", "echo its own line"]))
def own_command() -> None:
    raise AssertionError("the function is not what runs")


@task(task_config=HorovodJob(launcher=Launcher(replicas=1), worker=Worker(replicas=1), slots=2))
def horovod_training(epochs: int, learning_rate: float) -> tuple[float, FlyteFile]:
    import horovod.torch as hvd
    import torch

    hvd.init()
    torch.manual_seed(hvd.rank())
    data = torch.randn(64, 4)
    goal = data @ torch.tensor([[1.0], [2.0], [-1.0], [0.5]])
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate * hvd.size())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(data), goal)
        loss.backward()
        optimizer.step()
    print(f"rank {hvd.rank()} of {hvd.size()}: loss {loss.item():.4f}", flush=True)
    if hvd.rank() != 0:
        raise IgnoreOutputs("rank 0 returns the model")
    torch.save(model.state_dict(), "model.pt")
    return loss.item(), FlyteFile("model.pt")


@task
def checked(loss: float, model: FlyteFile) -> str:
    import torch

    weights = torch.load(model.download(), weights_only=True)["weight"]
    return f"loss {loss:.3f}, {weights.numel()} weights"


@workflow
def horovod_training_wf(epochs: int = 60, learning_rate: float = 0.05) -> str:
    loss, model = horovod_training(epochs=epochs, learning_rate=learning_rate)
    return checked(loss=loss, model=model)


@task(task_config=MPIJob(launcher=Launcher(replicas=1), worker=Worker(replicas=2), slots=1))
def tensorflow_training(epochs: int) -> float:
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    tf.random.set_seed(hvd.rank())
    data = tf.random.normal((64, 4))
    goal = data @ tf.constant([[1.0], [2.0], [-1.0], [0.5]])
    weights = tf.Variable(tf.zeros((4, 1)))
    hvd.broadcast_variables([weights], root_rank=0)
    for _ in range(epochs):
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean((data @ weights - goal) ** 2)
        weights.assign_sub(0.1 * tape.gradient(loss, [weights])[0])
    print(f"rank {hvd.rank()} of {hvd.size()}: loss {float(loss):.4f}", flush=True)
    return float(loss)


@workflow
def tensorflow_training_wf(epochs: int = 40) -> float:
    return tensorflow_training(epochs=epochs)
