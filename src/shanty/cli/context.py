"""Holds what most verbs need: the home, the settings, targets and runs; and prints errors."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from shanty.launch import settings
from shanty.launch.settings import Settings
from shanty.runtime.errors import NotFoundError, ShantyError
from shanty.runtime.rundir import home

if TYPE_CHECKING:
    from shanty.cli.terminal import Progress
    from shanty.launch.index import Runs
    from shanty.launch.targets.registry import Targets


@dataclass
class Context:
    """Read from the environment when first asked for."""

    environ: dict[str, str]

    @cached_property
    def home(self) -> Path:
        """Return the folder of all that shanty keeps."""
        return home(self.environ)

    @cached_property
    def settings(self) -> Settings:
        """Return the user's settings."""
        return settings.load(self.home)

    @cached_property
    def progress(self) -> Progress:
        """Return what shows how far the hosts are prepared."""
        from shanty.cli.terminal import Progress

        return Progress()

    @cached_property
    def targets(self) -> Targets:
        """Return the targets: where runs go."""
        from shanty.launch.targets.base import Surroundings
        from shanty.launch.targets.registry import Targets

        here = Surroundings(
            self.home,
            self.environ,
            self.settings,
            lambda text: self.progress(text),
            lambda text: self.progress.finding(text),
            terminal=at_terminal(),
        )
        return Targets(here)

    @cached_property
    def runs(self) -> Runs:
        """Return the runs that there are."""
        from shanty.launch.index import Runs

        return Runs(self.home, self.targets)


def at_terminal() -> bool:
    """Return true where a person can be asked."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def context() -> Context:
    """Return the context of this process."""
    return Context(dict(os.environ))


def folder_is_gone() -> NotFoundError:
    """Return what is said where the current folder has been deleted."""
    return NotFoundError(
        "the folder that you are in is gone",
        "somebody deleted it, or put another one in its place",
        "cd to a folder that is there",
    )


class Errors:
    """Says how errors are printed: as JSON once --json was among a verb's options."""

    as_json = False


def show_error(error: ShantyError) -> None:
    """Print an error the way all of them look."""
    if Errors.as_json:
        import json

        fields = {"what": error.what, "why": error.why, "fix": error.fix}
        line = json.dumps({"event": "error", **fields, "exit_code": error.exit_code})
        with contextlib.suppress(OSError):  # a full disk: then it is said as to a person
            print(line, flush=True)
            return
    red, bold, off = ("\033[31m", "\033[1m", "\033[0m") if sys.stderr.isatty() else ("", "", "")
    lines = str(error).splitlines()
    with contextlib.suppress(OSError):
        print(f"{red}{bold}shanty: {lines[0]}{off}", *lines[1:], sep="\n", file=sys.stderr)


def note(text: str) -> None:
    """Say something to the person, apart from the output of the ranks."""
    print(f"shanty: {text}", file=sys.stderr, flush=True)
