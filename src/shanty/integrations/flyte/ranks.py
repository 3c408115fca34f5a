"""Has MPI tasks of Flyte's run on ranks, where flytekit would call them once, in this process.

The hook is the `execute` of the plugin's task class: all around it (inputs, the cache, outputs,
other tasks) is flytekit's own local execution.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from shanty.client import calls
from shanty.client.context import Context, note
from shanty.client.jobs import job_of
from shanty.client.runs import start_job
from shanty.integrations.flyte.task_options import Wanted, of_task
from shanty.runtime import platform
from shanty.runtime.errors import PrepareError, ShantyError, UsageError
from shanty.runtime.spec import Raw, State
from shanty.tasks import flyte
from shanty.tasks.errors import RunError
from shanty.tasks.task import Task

PLACES = ("on", "hostfile", "machines", "image")  # options that say where ranks are
_SHORTAGES = (UsageError, PrepareError)
_MORE_ROOM = (
    "name hosts with --on, change what the task asks for, take fewer ranks with -n, or "
    "--oversubscribe"
)
_PACKAGES = "fix: where this Python has it: --packages sync brings the packages to the ranks"
_LEAVING = 20.0  # seconds for a run to end after Ctrl-C


class Ranks:
    """Runs MPI tasks. `failed` is what the last of them raised, once it was given up."""

    def __init__(self, options: Mapping[str, Any], *, quiet: bool = False) -> None:
        self.options = {name: value for name, value in options.items() if value is not None}
        self.quiet = quiet
        self.failed: BaseException | None = None
        self.called = 0
        self._elsewhere = False  # whether ranks do not see this machine's files

    def execute(self, task: Any, inputs: Mapping[str, Any]) -> Any:
        """Run a task, as often as it is to be tried; return what rank 0 returns."""
        self.called += 1
        wanted = of_task(task)
        options = self._options(wanted)
        if not self.quiet:
            note(f"{wanted.name}: {wanted.described()}")
            for each in (*wanted.notes, *_of_image(wanted, options.get("image"))):
                note(f"{wanted.name}: {each}")
        run = self._command if wanted.command else self._call
        for left in range(wanted.retries, -1, -1):
            try:
                return run(task, wanted, inputs, options)
            except Exception as error:
                if isinstance(error, ShantyError) and not isinstance(error, RunError):
                    raise _with_task(error, wanted) from error
                if not left or not _is_tried_again(error):
                    self.failed = error
                    if self._elsewhere and isinstance(error, ModuleNotFoundError):
                        error.add_note(_PACKAGES)
                    raise
                note(
                    f"{wanted.name} is tried again ({left} more): {_first_line(error)}"
                    if left > 1
                    else f"{wanted.name} is tried again, a last time: {_first_line(error)}"
                )
        raise AssertionError

    def _options(self, wanted: Wanted) -> dict[str, Any]:
        """Return the options of its runs: what was typed comes before what the task says."""
        here = Context(dict(os.environ))
        given = {name: self.options[name] for name in PLACES if name in self.options}
        job = job_of(Raw(("true",)), self._folder, given)  # with what shanty.toml says
        queued = here.targets.declared(job).late
        hosts = None
        if job.on and not queued:
            hosts = len(here.hosts_of(job.on))
        own = wanted.options(hosts=hosts, queued=queued)
        if wanted.image and here.targets.declared(job).needs_image:
            own["image"] = wanted.image
        elif job.image:
            own["image"] = job.image  # by shanty.toml, or as typed
        if self.options.keys() & {"ranks", "ranks_per_host"}:
            own.pop("ranks_per_host", None)
        on_hosts = bool(job.on or job.hostfile or queued)
        self._elsewhere = on_hosts or job.image is not None
        if not (on_hosts or self.options.get("oversubscribe")):
            _check_cores(wanted, self.options.get("ranks"), platform.usable_cores())
        env = {**own.pop("env", {}), **self.options.get("env", {})}
        name = wanted.name.rpartition(".")[2].strip("_") or "task"
        return {"name": name, **own, **self.options, "env": env}

    @property
    def _folder(self) -> Path:
        return Path(self.options.get("workdir") or ".").absolute()

    def _call(
        self, task: Any, wanted: Wanted, inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> Any:
        resolver = task.task_resolver
        call = flyte.Call(wanted.name, resolver.location, resolver.loader_args(None, task))
        with flyte.files_travel(flyte.CONTENT if self._elsewhere else flyte.PATH):
            future = calls.submit(Task(call, options), (), inputs, show=calls.printed)
        value = future.result()
        if value is not None:
            return value[0]
        if task.python_interface.outputs:
            raise UsageError(
                f"{wanted.name} has no outputs",
                "rank 0's are those that count, and it raised IgnoreOutputs or called sys.exit()",
                "return them in rank 0, and raise IgnoreOutputs in the others",
            )
        return None

    def _command(
        self, task: Any, wanted: Wanted, _inputs: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        """Run the launcher's own command, which takes no inputs and leaves no outputs here."""
        if task.python_interface.outputs:
            raise UsageError(
                f"the launcher of {wanted.name} has a command of its own, which returns nothing",
                "the task declares outputs, and its function is not called",
                "leave out Launcher(command=…), or the outputs",
            )
        given = {name: value for name, value in options.items() if name != "workdir"}
        here = Context(dict(os.environ))
        job = job_of(Raw(wanted.command), self._folder, given)
        run = start_job(here, job, quiet=self.quiet)
        try:
            for line in run.logs(follow=True):
                calls.printed(run, [line])
            run.wait(check=True)
        except KeyboardInterrupt:
            run.stop()
            run.wait(_LEAVING)
            raise


def _of_image(wanted: Wanted, image: str | None) -> Iterator[str]:
    """Say that a task's own image is not that of its ranks."""
    if wanted.image and image is None:
        yield "its image is left out: its ranks have this Python's packages; --image names one"
    elif wanted.image not in ("", image):
        yield f"its image is left out for {image}"


def _check_cores(wanted: Wanted, ranks: int | None, cores: int) -> None:
    """Raise UsageError where the workers, as many as `ranks` need, do not fit on this machine."""
    workers = -(-(ranks or wanted.ranks) // wanted.slots)
    needed = workers * wanted.resources.get("cpu", 0.0)
    if needed > cores:
        raise UsageError(
            f"{wanted.name} asks for {needed:g} CPU, this machine has {cores}",
            f"it asks for {wanted.described()}",
            _MORE_ROOM,
        )


def _with_task(error: ShantyError, wanted: Wanted) -> ShantyError:
    """Return the error with the task that it is about, and with what that asks for."""
    if not isinstance(error, _SHORTAGES) or wanted.name in error.what:
        return error
    asks = f"{wanted.name} asks for {wanted.described()}"
    short_of_cores = "do not fit" in error.what and wanted.resources.get("cpu")
    return type(error)(
        f"{wanted.name} cannot be run: {error.what}",
        f"{error.why}; {asks}" if error.why else asks,
        _MORE_ROOM if short_of_cores else error.fix,
    )


def _is_tried_again(error: Exception) -> bool:
    """Return whether Flyte tries again: on its recoverable errors, and where the job failed.

    A job fails when a host is lost, a rank is killed or exits, or time is over. An exception of
    the function's ends the task.
    """
    from flytekit.exceptions.user import FlyteRecoverableException

    if isinstance(error, RunError):
        return error.run is None or error.run.state is not State.STOPPED
    return isinstance(error, FlyteRecoverableException)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


@contextmanager
def on_ranks(*, quiet: bool = False, **options: Any) -> Iterator[Ranks]:
    """Have all MPI tasks that flytekit calls in this block run on ranks.

    options: those of `shanty run`, by their names in Python; None: as the tasks say. Raises
    UsageError where flytekitplugins-kfmpi is not installed. Not for several threads at once.
    """
    plugin = mpi_task_class()
    ranks = Ranks(options, quiet=quiet)
    executes = patch.object(plugin, "execute", _execute_of(plugin, ranks))
    with executes, patch.object(plugin, "local_execute", _local_execute_of(plugin, ranks)):
        yield ranks


def _execute_of(plugin: Any, ranks: Ranks) -> Callable[..., Any]:
    plain = plugin.execute

    def execute(task: Any, **inputs: Any) -> Any:
        if task.execution_mode is not task.ExecutionBehavior.DEFAULT:
            return plain(task, **inputs)
        return ranks.execute(task, inputs)

    return execute


def _local_execute_of(plugin: Any, ranks: Ranks) -> Callable[..., Any]:
    plain = plugin.local_execute

    def local_execute(task: Any, *args: Any, **inputs: Any) -> Any:
        before = ranks.called
        outputs = plain(task, *args, **inputs)
        if ranks.called == before and task.metadata.cache and not ranks.quiet:
            note(f"{task.name}: its outputs are in flytekit's cache")
        return outputs

    return local_execute


def mpi_task_class() -> Any:
    """Return the class of all MPI tasks; UsageError where the plugin is not installed."""
    try:
        from flytekitplugins.kfmpi.task import MPIFunctionTask
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("flytekit"):
            raise
        raise UsageError(
            f"{error.name} is not installed for {sys.executable}, which runs shanty",
            "workflows are run by flytekit, and their MPI tasks are its plugin's",
            f"{sys.executable} -m pip install flytekit flytekitplugins-kfmpi",
        ) from error
    return MPIFunctionTask
