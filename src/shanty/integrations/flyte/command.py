"""`shanty flyte run`: pyflyte's words; the workflow's MPI tasks run on ranks."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click

from shanty.client import jobs, options
from shanty.client.command import bring_script, refuse_in_ranks
from shanty.client.context import context, note
from shanty.client.options import OPTIONS
from shanty.client.terminal.grouped import GroupedCommand
from shanty.client.terminal.options import completed, quiet_option, run_option
from shanty.runtime.errors import NotFoundError, ShantyError, UsageError
from shanty.runtime.spec import Script
from shanty.tasks.errors import RunError

# Options of `shanty run` that are not here: of other commands, or with a flag of pyflyte's.
_NOT_HERE = (
    "debug_rank", "source", "inputs", "operator", "env", "labels", "tags", "image",
)  # fmt: skip
_TAKEN = [name for name in OPTIONS if name not in _NOT_HERE]
# Options of `pyflyte run` for a Flyte deployment, with a value and without.
_WITH_VALUE = (
    "-p --project", "-d --domain", "--destination-dir", "--copy", "--poll-interval",
    "--interruptible", "--labels --label", "--annotations --annotation", "--max-parallelism",
    "--limit", "--cluster-pool", "--execution-cluster-label --ecl",
)  # fmt: skip
_FLAGS = (
    "-r --remote", "--copy-all", "--wait --wait-execution", "--dump-snippet",
    "--disable-notifications",
)  # fmt: skip
_FETCHES = ("remote-launchplan", "remote-workflow", "remote-task")  # in place of a file


class FlyteRunCommand(GroupedCommand):
    """Has the options of `shanty run`, in its groups, and those of `pyflyte run`."""

    common = (
        "ranks", "on", "machines", "image", "mpi", "python", "env", "time_limit", "retries",
        "name", "overwrite_cache", "raw_output", "dry_run", "quiet",
    )  # fmt: skip
    groups = {
        title: [name for name in names if name in (*_TAKEN, "env", "labels")]
        for title, names in options.GROUPS.items()
        if title not in ("MPI", "Name and output")
    } | {
        "MPI": ["mpi"],
        "Containers": options.GROUPS["Containers"],
        "Name and output": ["name", "tags", "log_to", "profile", "dry_run", "form", "quiet"],
        "Flyte": ["overwrite_cache", "raw_output"],
    }  # fmt: skip


def _options_of_runs(command: Callable[..., Any]) -> Callable[..., Any]:
    for name in reversed(_TAKEN):
        text = "Ranks in all [as the task says]." if name == "ranks" else ""
        command = run_option(name, help=text)(command)
    command = run_option("env", flags="-e --env --envvars")(command)
    command = run_option("labels", flags="--k8s-label")(command)  # --label is of a deployment
    made: Callable[..., Any] = run_option("tags", flags="--tag --tags")(command)
    return made


def _options_of_deployments(command: Callable[..., Any]) -> Callable[..., Any]:
    for flags in (*_WITH_VALUE, *_FLAGS):
        more: dict[str, Any] = {"is_flag": True} if flags in _FLAGS else {"multiple": True}
        command = click.option(*flags.split(), _name(flags), hidden=True, **more)(command)
    return command


def _name(flags: str) -> str:
    """Return the parameter's name; `shanty run` has options of some of their names."""
    return "deployment_" + _shown_name(flags).strip("-").replace("-", "_")


def _shown_name(flags: str) -> str:
    return next(flag for flag in flags.split() if flag.startswith("--"))


@click.group()
def flyte() -> None:
    """Run Flyte's workflows, their MPI tasks on ranks."""


@flyte.command(cls=FlyteRunCommand, context_settings={"allow_interspersed_args": False})
@click.argument(
    "words",
    nargs=-1,
    required=True,
    type=click.UNPROCESSED,
    shell_complete=completed("files"),
    metavar="FILE|URL [WORKFLOW [--INPUT VALUE]…]",
)
@_options_of_runs
@click.option("--overwrite-cache", is_flag=True, help="Run tasks whose results are cached, too.")
@click.option(
    "--raw-output-data-prefix", "--raw-data-prefix", "raw_output", metavar="PREFIX",
    help="Where files and data are put.",
)  # fmt: skip
@click.option(
    "-i", "--image", multiple=True, metavar="IMAGE",
    help="Run in a container of this image on each host, or in pods.",
)  # fmt: skip
@_options_of_deployments
@click.option("--dry-run", is_flag=True, help="Print the first MPI task as MPIJob; run none.")
@click.option("-o", "form", type=click.Choice(["yaml", "json"]), help="How --dry-run prints it.")
@quiet_option
def run(
    words: tuple[str, ...],
    overwrite_cache: bool,
    raw_output: str | None,
    image: tuple[str, ...],
    dry_run: bool,
    form: str | None,
    quiet: bool,
    env_file: tuple[Path, ...],
    workdir: Path | None,
    **typed: Any,
) -> None:
    """Run a workflow, or a task, as `pyflyte run` does.

    Tasks of MPIJob and HorovodJob run under MPI, as many ranks as they ask for. Options of
    pyflyte's that are for a Flyte deployment, as --remote, are left out, with a note.

    \b
    Examples:
      shanty flyte run wf.py training --epochs 3
      shanty flyte run --on a,b wf.py training --epochs 3
      shanty flyte run wf.py training --help
    """
    from shanty.integrations.flyte.ranks import on_ranks

    refuse_in_ranks(os.environ)
    given = options.typed(
        {name: value for name, value in typed.items() if not name.startswith("deployment_")}
    )
    given = {name: value for name, value in given.items() if value not in (None, (), [], {})}
    given["env"] = jobs.environment(typed["env"], env_file, os.environ)
    if typed["k8s_patch"]:  # it is read where the job is made
        given["k8s_patch"] = str(Path(typed["k8s_patch"]).absolute())
    if "mounts" in given:
        given["mounts"] = [":".join(each) for each in given["mounts"]]
    on_kubernetes = str(given.get("on", "")).partition(":")[0] == "k8s"
    # With --remote it is the deployment's, as a platform's page has it in its line.
    takes_image = on_kubernetes or not typed[_name("-r --remote")]
    if image and takes_image and not dry_run:
        given["image"] = _read("image", image[-1], "--image")
    if form and not dry_run:
        raise UsageError(f"-o {form} says how --dry-run shows it", fix="add --dry-run")
    if not quiet:
        _say_what_is_left_out(typed, image=bool(image) and not (takes_image or dry_run))
    script = _script(words[0])
    own = ["--overwrite-cache"] if overwrite_cache else []
    own += ["--raw-output-data-prefix", raw_output] if raw_output else []
    own += [word for pair in typed["env"] if "=" in pair for word in ("--env", pair)]
    root = _project_root(script)
    given["workdir"] = _workspace(script, root, workdir, given)
    sys.path.insert(0, str(root))  # where ranks, too, find the module
    line = [*own, str(script) if "://" in words[0] else words[0], *words[1:]]
    if dry_run:
        sys.exit(_with_flytekit(_shown(form or "yaml", image), line))
    sys.exit(_with_flytekit(on_ranks(quiet=quiet, **given), line))


def _read(name: str, text: str, flag: str) -> str:
    read = OPTIONS[name].read
    assert read is not None
    return str(read(text, flag, Path.cwd()))


def _say_what_is_left_out(typed: Mapping[str, Any], *, image: bool) -> None:
    names = [_shown_name(flags) for flags in (*_FLAGS, *_WITH_VALUE) if typed[_name(flags)]]
    if names:
        verb = "is" if len(names) == 1 else "are"
        note(
            f"{', '.join(names)} {verb} for a Flyte deployment and left out: the workflow runs "
            "from here, its MPI tasks where --on says"
        )
    if image:
        note(
            "--image goes with --remote and is left out: ranks have this Python's packages; "
            "without --remote they are in a container of it"
        )


def _script(word: str) -> Path:
    """Return the file of the workflow; one at a URL is fetched."""
    if word in _FETCHES:
        raise UsageError(
            f"{word} is on a Flyte deployment", "only workflows of a file are run here",
            "name the file, or its URL",
        )  # fmt: skip
    if "://" in word:
        return jobs.fetched_script(word, context())
    path = Path(word).absolute()
    if not path.is_file():
        raise NotFoundError(f"file {word!r} not found", fix="give a workflow's file, or its URL")
    return path


def _project_root(script: Path) -> Path:
    """Return the first folder above a file that is not a package, as flytekit does."""
    folder = script.parent
    while (folder / "__init__.py").exists():
        folder = folder.parent
    return folder


def _workspace(script: Path, root: Path, workdir: Path | None, given: Mapping[str, Any]) -> Path:
    """Return the folder that ranks run in, and that hosts get."""
    from shanty.client.jobs import job_of
    from shanty.integrations.flyte.ranks import PLACES

    folder = (workdir or Path.cwd()).absolute()
    if not folder.is_dir():
        raise UsageError(f"folder not found: {folder}", fix="check --workdir")
    places = {name: given[name] for name in PLACES if given.get(name)}
    job = job_of(Script(str(script)), folder, places)  # with what shanty.toml says
    if job.machines:
        job = replace(job, on="machines")
    elsewhere = job.on or job.hostfile or job.image
    if workdir is not None or script.is_relative_to(folder) or not elsewhere:
        return folder
    if root != script.parent:
        raise UsageError(
            f"{script} is not in {folder}, which is what hosts and containers get",
            f"it is part of a package, whose folder is {root}",
            f"cd {root}, or add -C {root}",
        )
    return Path(bring_script(job).workdir)


def _with_flytekit(hook: AbstractContextManager[Any], line: Sequence[str]) -> int:
    """Let pyflyte run the line while the hook is in its place; return the exit code."""
    with hook as ranks:
        from flytekit.clis.sdk_in_container.run import run as pyflyte_run
        from flytekit.clis.sdk_in_container.utils import pretty_print_exception

        # flytekit's own handler would leave the ranks to themselves.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        # Of bool inputs, whose options pyflyte gives the same name twice.
        warnings.filterwarnings("ignore", "The parameter --.* is used more than once")
        try:
            code = pyflyte_run.main(
                [*line], prog_name="shanty flyte run", standalone_mode=False, obj={}
            )
        except _Shown:
            return 0
        except (click.ClickException, click.Abort):
            raise
        except Exception as error:
            if isinstance(error, ShantyError) and not isinstance(error, RunError):
                raise
            if error is getattr(ranks, "failed", None):
                return _tell(error)
            trace = error.__traceback__  # its first frame is this one
            pretty_print_exception(error.with_traceback(trace and trace.tb_next), 0)
            return 1
    if ranks is None and code is None:  # not after --help
        raise UsageError(
            "the workflow has called no MPI task, so --dry-run has nothing to show",
            "its tasks were run; an MPI task is one with task_config=MPIJob(…) or HorovodJob(…)",
            "name a workflow or a task that has one",
        )
    return code if isinstance(code, int) else 0


def _tell(error: BaseException) -> int:
    """Say why a task failed; its ranks have printed the traceback. Return the exit code."""
    lines = [*str(error).splitlines(), *getattr(error, "__notes__", ())]
    kind = "" if isinstance(error, RunError) else f"{type(error).__name__}: "
    note(f"{kind}{lines[0] if lines else ''}")
    for text in lines[1:]:
        print(text if text.startswith(" ") else f"  {text}", file=sys.stderr, flush=True)
    status = error.run.status if isinstance(error, RunError) and error.run else None
    return (status.exit_code if status else None) or 1


class _Shown(BaseException):
    """What was to be shown has been; no `except Exception` of flytekit's keeps it."""


@contextmanager
def _shown(form: str, image: Sequence[str]) -> Iterator[None]:
    """Have the first MPI task printed, in place of running it; all other output is aside."""
    from unittest.mock import patch

    from shanty.integrations.flyte.mpijob import made_of
    from shanty.integrations.flyte.ranks import mpi_task_class

    stdout = sys.stdout

    def dispatch_execute(task: Any, _context: Any, inputs: Any) -> NoReturn:
        from flytekit.configuration import DefaultImages

        made = made_of(task, inputs, image[-1] if image else DefaultImages.default_image())
        if form == "json":
            print(json.dumps(made, indent=2), file=stdout)
        else:
            import yaml

            print(yaml.safe_dump(made, sort_keys=False), end="", file=stdout)
        raise _Shown

    plugin = mpi_task_class()
    plain = plugin.local_execute

    def local_execute(task: Any, *args: Any, **inputs: Any) -> Any:
        task.metadata.cache = False  # outputs from the cache would let the workflow go on
        return plain(task, *args, **inputs)

    shows = patch.object(plugin, "dispatch_execute", dispatch_execute)
    asks = patch.object(plugin, "local_execute", local_execute)
    with shows, asks, redirect_stdout(sys.stderr):
        yield
