"""Implements `horovod.run`: calls a Python function on ranks, and gets what each returns.

The ranks belong to an ordinary `shanty run`, in a process of its own, because the caller may be a
rank of another run or have another Python. The call and its outcome are sent as those of tasks.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from shanty.runtime.localhost import all_here
from shanty.runtime.rundir import RUN_DIR, RunDir, read_json

Result = TypeVar("Result")

# What an outer run, or an outer launcher, has set for its own ranks.
_OUTER = (
    *("SHANTY_", "OMPI_", "PMIX_", "PMI_", "PRTE_"),
    *("HYDRA_", "HYDI_", "MPIR_", "MPI_LOCAL", "I_MPI_"),
)
_PLACES = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TF_CONFIG", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID"),
    "TORCHELASTIC_USE_AGENT_STORE",
    *("HOSTFILE", "MPI4PY_LIBMPI", "MLX_MPI_LIBNAME", "PMIX_RANK", "MPIEXEC_TIMEOUT"),
)
_LISTS = ("PYTHONPATH", "LD_LIBRARY_PATH")
_LINES = 20  # of the rank that failed, in an error
_KEPT = ("SHANTY_HOME", "SHANTY_HOROVOD", "SHANTY_COMMITS", "SHANTY_RESUME")


def run(
    func: Callable[..., Result],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    min_num_proc: int | None = None,
    max_num_proc: int | None = None,
    slots: int | None = None,
    reset_limit: int | None = None,
    cooldown_range: Sequence[int] | None = None,
    hosts: str | None = None,
    hostfile: str | None = None,
    host_discovery_script: str | None = None,
    start_timeout: int | None = None,
    ssh_port: int | None = None,
    ssh_identity_file: str | None = None,
    disable_cache: bool | None = None,
    output_filename: str | None = None,
    verbose: int | None = None,
    use_gloo: bool | None = None,
    use_mpi: bool | None = None,
    mpi_args: str | None = None,
    network_interface: str | None = None,
    network_interfaces: Sequence[str] | None = None,
    executable: str | None = None,
    np: int | None = None,
    min_np: int | None = None,
    max_np: int | None = None,
) -> list[Result]:
    """Call func(*args, **kwargs) on `num_proc` ranks; returns what they returned, by rank.

    func, args and kwargs, and what func returns, are pickled by cloudpickle: func may be a lambda,
    or from a notebook. hosts: "a:2,b:4"; hostfile: lines of `a slots=2`; neither:
    this machine. start_timeout: seconds. output_filename: a folder for the ranks' output, as
    rank.K/stdout and rank.K/stderr. mpi_args: words for mpirun. network_interfaces: what MPI may
    use. executable: the ranks' Python [the caller's]. np, min_np, max_np, network_interface: older
    names. The number of ranks does not change; what only concerns that is warned of and left out.

    Raises RuntimeError when a rank fails, with its words, and what it raised as the cause;
    NotPicklableError, a TypeError, for what cannot be pickled; ValueError for arguments that make
    no sense together or have no counterpart here.
    """
    call, outcome = _tasks()
    if call.reading:
        raise RuntimeError(
            "horovod.run is called again where a rank imports the module of the function. Put the "
            "call under `if __name__ == '__main__':`, or into a function of its own."
        )
    num_proc = num_proc if np is None else np
    if network_interface:
        network_interfaces = network_interface.split(",")
    if sum(each is not None for each in (hosts, hostfile, host_discovery_script)) > 1:
        raise ValueError("Only one of hosts, hostfile and host_discovery_script can be given.")
    if use_gloo and use_mpi:
        raise ValueError("Only one of use_gloo and use_mpi can be given.")
    if ssh_port or ssh_identity_file:
        raise ValueError(
            "ssh_port and ssh_identity_file are not taken here: hosts are reached as ssh reaches "
            "them. Set Port and IdentityFile for them in ~/.ssh/config."
        )
    elastic = {
        "min_num_proc": min_num_proc or min_np,
        "max_num_proc": max_num_proc or max_np,
        "slots": None if host_discovery_script else slots,
        "reset_limit": reset_limit,
        "cooldown_range": cooldown_range,
    }
    unused = [name for name, value in elastic.items() if value is not None]
    if unused:
        warnings.warn(
            f"horovod.run leaves out {', '.join(unused)}: the number of ranks does not change "
            "while a job runs",
            stacklevel=2,
        )
    if host_discovery_script:
        hosts = _discovered(host_discovery_script, slots)
    launcher = shlex.split(mpi_args or "")
    if network_interfaces:
        launcher += ["-mca", "btl_tcp_if_include", ",".join(network_interfaces)]
    on = None if hosts is None or all_here(hosts.split(",")) else hosts
    output = Output(num_proc, Path(output_filename) if output_filename else None)
    with tempfile.TemporaryDirectory(prefix="shanty-call-") as folder:
        elsewhere = on is not None or hostfile is not None
        call.write(
            Path(folder), func, args, kwargs or {},
            workspace=Path.cwd(), each=True, elsewhere=elsewhere,
        )  # fmt: skip
        command = _command(
            num_proc,
            {
                "--on": on,
                "--hostfile": hostfile,
                "--start-timeout": start_timeout,
                "--python": executable or sys.executable,
                "--mpi": _outer_mpi(os.environ),
                "--inputs": folder,
            },
            launcher,
        )
        if verbose:
            print("shanty:", shlex.join(command), file=sys.stderr)
        code = _follow(command, output)
    there = RunDir(output.run, output.ended.get("attempt", 1)) if output.run else None
    if code != 0 or there is None:
        words = f"horovod.run failed with exit code {code}: {output.failure()}"
        raise RuntimeError(words) from _cause(outcome, there, output)
    results: list[Any] = [None] * num_proc
    for rank in range(num_proc):
        with contextlib.suppress(FileNotFoundError):  # of a rank that raised IgnoreOutputs
            results[rank] = outcome.read_value(there, rank)
            outcome.value_file(there, rank).unlink()
    return results


def _tasks() -> tuple[ModuleType, ModuleType]:
    """Load what takes a call to ranks and back; RuntimeError where cloudpickle is missing."""
    try:
        from shanty.tasks import call, outcome
    except ModuleNotFoundError as error:
        raise RuntimeError(
            f"horovod.run needs {error.name}, which pickles functions, and {sys.executable} does "
            f"not have it: pip install {error.name}"
        ) from error
    return call, outcome


def _cause(outcome: ModuleType, there: RunDir | None, output: Output) -> BaseException | None:
    """Return what the rank that failed first raised."""
    failure = output.ended.get("failure") or {}
    rank = failure.get("rank")
    if there is None or rank is None:
        return None
    place = f"rank {rank} on {failure.get('host')}"
    found: BaseException | None = outcome.read_error(there, rank, place)
    return found


def program() -> list[str]:
    """Return the words that start `shanty`; RuntimeError where it cannot be found."""
    finder = importlib.machinery.PathFinder  # a run's own finders find no command line
    if all(finder.find_spec(name) is not None for name in ("shanty", "click")):
        return [sys.executable, "-m", "shanty"]
    found = shutil.which("shanty")
    if found is None:
        raise RuntimeError(
            "The program `shanty`, which starts ranks, is not on PATH, nor is it installed for "
            f"{sys.executable}: pip install shanty"
        )
    return [found]


def clean_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a run of its own, also from within a rank of another run."""
    kept = {
        name: value
        for name, value in environ.items()
        if name in _KEPT or not (name.startswith(_OUTER) or name in _PLACES)
    }
    paths = kept.get("PYTHONPATH", "").split(os.pathsep)
    kept["PYTHONPATH"] = os.pathsep.join(
        path for path in paths if not path.endswith("/runtime/rank/hook")
    )
    library = str(Path(environ.get("MPI4PY_LIBMPI", "")).parent)
    libraries = kept.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    kept["LD_LIBRARY_PATH"] = os.pathsep.join(path for path in libraries if path != library)
    return {name: value for name, value in kept.items() if value or name not in _LISTS}


def _outer_mpi(environ: Mapping[str, str]) -> str | None:
    """Return the prefix of the MPI of the run that this process is a rank of, if any."""
    folder = environ.get(RUN_DIR)
    plan = read_json(RunDir(Path(folder)).plan) if folder else None
    nodes = (plan or {}).get("attempt", {}).get("nodes", [])
    prefix = str(nodes[0]["mpi"]["prefix"]) if nodes else ""
    return prefix if Path(prefix).is_absolute() and Path(prefix).is_dir() else None


def _command(
    ranks: int, options: Mapping[str, object | None], launcher: Sequence[str]
) -> list[str]:
    """Return the `shanty run` of the task; a line for mpirun where there are words for that."""
    words = [*program(), "run", "--json", "-n", str(ranks)]
    if options["--on"] is None and options["--hostfile"] is None:
        words.append("--oversubscribe")  # horovod.run takes any number on this machine
    for name, value in options.items():
        if value is not None:
            words += [name, str(value)]
    task = ["-m", "shanty.tasks.rank"]
    if launcher:
        return [*words, "--", "mpirun", "-np", str(ranks), *launcher, "python", *task]
    return [*words, *task]


def _follow(command: Sequence[str], output: Output) -> int:
    """Start the command and follow its output; returns its exit code."""
    environ = clean_environment(os.environ)
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environ
    )
    with process:
        try:
            output.follow(process.stdout or ())
        finally:
            if process.poll() is None:
                process.terminate()  # it stops the run
            process.wait()
    return process.returncode


def _discovered(script: str, slots: int | None) -> str:
    """Ask a script, once, for hosts; it prints one a line, as HOST or HOST:SLOTS."""
    done = subprocess.run(
        shlex.split(script), stdout=subprocess.PIPE, text=True, timeout=60, check=True
    )
    words = dict.fromkeys(done.stdout.split())
    if not words:
        raise ValueError(f"host_discovery_script {script} named no hosts")
    return ",".join(word if ":" in word or not slots else f"{word}:{slots}" for word in words)


class Output:
    """Follows `shanty run --json`: shows the ranks' lines, keeps where it is, how it ended."""

    def __init__(self, ranks: int, folder: Path | None) -> None:
        self.run: Path | None = None
        self.ended: dict[str, Any] = {}
        self._folder = folder
        self._digits = len(str(ranks - 1))

    def follow(self, lines: Iterable[bytes]) -> None:
        """Take the lines of `shanty run --json` until they end."""
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event["event"] == "started":
                self.run = Path(event["path"])
            elif event["event"] == "output":
                self._show(event)
            elif event["event"] == "ended":
                self.ended = event

    def _show(self, event: dict[str, Any]) -> None:
        rank, text = event["rank"], event["text"] + "\n" * event["whole"]
        stream = sys.stderr if event["stream"] == "stderr" else sys.stdout
        stream.write(f"[{rank}] {text}" if rank is not None else text)
        stream.flush()
        if self._folder is not None and rank is not None:
            folder = self._folder / f"rank.{rank:0{self._digits}}"
            folder.mkdir(parents=True, exist_ok=True)
            with (folder / event["stream"]).open("a") as file:
                file.write(text)

    def failure(self) -> str:
        """Say how the run failed, with the last lines of the rank that failed."""
        failure = self.ended.get("failure") or {}
        parts = [failure.get("what") or "the ranks could not be started"]
        parts += [failure[key] for key in ("why", "fix") if failure.get(key)]
        parts += [f"  | {line}" for line in failure.get("lines", ())[-_LINES:]]
        return "\n".join(parts)
