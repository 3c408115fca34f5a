"""The magics: `%%ranks -n 4` runs a cell on ranks that stay, `%ranks` looks after them."""

from __future__ import annotations

import ast
import os
import shlex
import sys
from collections.abc import Callable
from typing import Any

import click

from shanty.client import jobs, options
from shanty.client.command import refuse_in_ranks
from shanty.client.context import Context, note
from shanty.client.terminal.old_flags import RunOptionsCommand
from shanty.client.terminal.options import run_options
from shanty.integrations.notebook.ranks import Ranks, plain
from shanty.runtime.errors import ShantyError, UsageError
from shanty.runtime.spec import JobSpec, Module
from shanty.tasks.errors import NotPicklableError

_NAME = "ranks"
_IPYTHON = "get_ipython()"  # what it puts in the place of lines that are not Python
_VERBS = """%ranks status              which ranks there are, and what they do
%ranks stop                end them
%ranks restart             start the same number again, without their variables
%ranks wait                for a cell that was left
%ranks push NAME …         give variables of the notebook to all ranks
%ranks pull NAME …         take variables of rank 0"""


@click.command(_NAME, cls=RunOptionsCommand, add_help_option=False)
@run_options
def _words(**typed: Any) -> dict[str, Any]:
    """Give back what was typed after %%ranks."""
    return typed


def _job(line: str, here: Context) -> JobSpec:
    """Make the job of the options after %%ranks; UsageError where these make no sense."""
    refuse_in_ranks(os.environ)
    try:
        words = shlex.split(line)
        given: dict[str, Any] = _words.main(words, _NAME, standalone_mode=False)
    except (click.ClickException, ValueError) as error:
        text = error.format_message() if isinstance(error, click.ClickException) else str(error)
        raise UsageError(text, fix="%%ranks takes the options of shanty run") from None
    env_file, workdir = given.pop("env_file"), given.pop("workdir")
    folder = jobs.workspace_folder(given["source"], workdir, here)
    values = options.typed(given)
    values["env"] = jobs.environment(given["env"], env_file, os.environ)
    if values.get("python") is None:
        values["python"] = sys.executable
    job = jobs.job_typed(Module("shanty.tasks.cells"), folder, values)
    for name, usual in (("debug_rank", None), ("inputs", None), ("retries", 0)):
        if getattr(job, name) != usual:
            flag = options.OPTIONS[name].flags.split()[-1]
            raise UsageError(f"{flag} is not for the ranks of a notebook", fix="leave it out")
    if job.image is not None or here.targets.declared(job).late:
        raise UsageError(
            "the ranks of a notebook are on this machine, or on hosts reached by ssh",
            "cells come by rank 0's standard input, which queues and containers do not pass on",
            "leave --on out, or name hosts with it",
        )
    return job


class Magics:
    """`ranks` as a magic of cells and of lines, with the ranks that it has started."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._ranks: Ranks | None = None
        self._line = ""  # the options that they were started with

    def cell(self, line: str, cell: str) -> Any:
        """Run a cell on the ranks; with options, or where there are none, these are started."""
        return self._shown(lambda: self._run(line, cell))

    def line(self, line: str) -> Any:
        """Do one of the verbs."""
        verb, *names = line.split() or ["status"]
        return self._shown(lambda: self._do(verb, names))

    def stop(self) -> None:
        """End the ranks, if there are any."""
        if self._ranks is not None:
            self._ranks.stop()
            self._ranks = None

    def _shown(self, work: Callable[[], Any]) -> Any:
        """Have our own errors shown as they are, without the frames that led to them."""
        try:
            return work()
        except (ShantyError, NotPicklableError) as error:
            raise plain(error, f"shanty: {error}") from None
        except KeyboardInterrupt as error:
            if not hasattr(error, "_render_traceback_"):  # that of no rank
                plain(error, "KeyboardInterrupt")
            raise

    def _run(self, line: str, cell: str) -> Any:
        return self._current(line).execute(self._python_of(cell))

    def _python_of(self, cell: str) -> str:
        """Return the cell as Python; UsageError where only the notebook can do what a line says."""
        try:
            compile(cell, "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError:
            there: str = self._shell.transform_cell(cell)  # which also takes off `>>> `
        except ValueError:  # a null byte
            return cell
        else:
            return cell
        if _IPYTHON not in there:
            return there
        number, line = next(
            (number, line)
            for number, line in enumerate([*map(str.strip, cell.splitlines()), cell], 1)
            if _IPYTHON in self._shell.transform_cell(f"{line}\n")
        )
        fix = "use a cell without %%ranks for it"
        if line.startswith("%%"):
            fix = f"write {line.split()[0]} above %%ranks, in the first line of the cell"
        elif "!" in line:
            fix += ", or subprocess.run(…)"
        raise UsageError(
            f"line {number} of the cell is not Python: {line}",
            "ranks take Python only; magics, lines with ! and questions with ? are the notebook's",
            fix,
        )

    def _current(self, line: str) -> Ranks:
        line = line.strip()
        if self._ranks is not None and self._ranks.ended:
            note(f"the ranks of run {self._ranks.run.id} have ended; new ones are started")
            self.stop()
        if self._ranks is None:
            self._start(line or self._line)
        elif line and line != self._line:
            raise UsageError(
                f"ranks are running already, started with {self._line or 'no options'}",
                "ranks keep their variables, so only you can end them",
                "%ranks stop, or leave the options out",
            )
        assert self._ranks is not None
        return self._ranks

    def _start(self, line: str) -> None:
        here = Context(dict(os.environ))
        job = _job(line, here)
        rich = hasattr(self._shell, "kernel")
        self._ranks = Ranks(here, job, rich=rich)
        self._line = line

    def _do(self, verb: str, names: list[str]) -> Any:
        if verb not in ("status", "stop", "restart", "wait", "push", "pull"):
            raise UsageError(f"unknown: %ranks {verb}", fix=f"known are\n{_VERBS}")
        ranks = self._ranks
        if verb == "restart":
            self.stop()
            self._start(self._line)
            return None
        if ranks is None:
            if verb in ("status", "stop"):
                print("no ranks; %%ranks -n 2 starts them")
                return None
            raise UsageError("no ranks have been started", fix="%%ranks -n 2 starts them")
        if verb == "status":
            print(ranks.describe())
        elif verb == "stop":
            self._ranks = None
            ranks.stop(print)
        elif verb == "wait":
            return ranks.wait()
        elif not names:
            raise UsageError(f"%ranks {verb} needs the name of a variable")
        for name in names if verb == "push" else ():
            if name not in self._shell.user_ns:
                raise UsageError(f"the notebook has no variable {name!r}")
            ranks.push(name, self._shell.user_ns[name])
        for name in names if verb == "pull" else ():
            self._shell.user_ns[name] = ranks.pull(name)
        return None


def load_ipython_extension(shell: Any) -> None:
    """What IPython calls for `%load_ext shanty`."""
    magics = Magics(shell)
    shell.register_magic_function(magics.cell, "cell", _NAME)
    shell.register_magic_function(magics.line, "line", _NAME)


def unload_ipython_extension(shell: Any) -> None:
    """What IPython calls for `%unload_ext shanty`: the ranks end."""
    for kind in ("cell", "line"):
        found = shell.magics_manager.magics[kind].pop(_NAME, None)
        if found is not None:
            found.__self__.stop()
