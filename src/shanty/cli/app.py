"""Starts the program `shanty`: finds the verb, and turns errors into words and exit codes."""

from __future__ import annotations

import codecs
import errno
import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

import click

from shanty._version import __version__
from shanty.client.context import folder_is_gone
from shanty.client.terminal.errors import Errors, show_error
from shanty.client.terminal.help_all import help_all_option, shows_all
from shanty.runtime.errors import ShantyError, StorageError, UsageError
from shanty.runtime.rundir import home, not_allowed

# What people type who know another program, and what it is here.
_ELSEWHERE = {
    **dict.fromkeys(("list", "ls", "status", "jobs", "top", "runs", "squeue"), "ps"),
    **dict.fromkeys(("kill", "cancel", "abort", "scancel", "end"), "stop"),
    **dict.fromkeys(("start", "exec", "submit", "launch", "train", "mpirun", "mpiexec"), "run"),
    **dict.fromkeys(("delete", "remove", "del"), "rm"),
    **dict.fromkeys(("info", "describe", "inspect"), "show"),
    **dict.fromkeys(("restart", "retry", "again"), "rerun"),
    **dict.fromkeys(("tail", "output", "attach", "follow"), "logs -f"),
    **dict.fromkeys(("check", "diagnose", "test"), "doctor"),
    **dict.fromkeys(("clean", "cleanup", "gc"), "prune"),
    **dict.fromkeys(("dashboard", "web", "gui", "browser"), "ui"),
    "version": "--version",
}  # fmt: skip


class Verbs(click.Group):
    """Loads the command of a verb when the verb is used; `shanty.program` says which there are.

    `--help` lists them in groups; the last group only `--help-all` lists.
    """

    verbs: Mapping[str, str]
    _groups: Mapping[str, Mapping[str, str]]

    def use(
        self,
        groups: Mapping[str, Mapping[str, str]],
        command: Callable[[str], click.Command],
        second_word: Callable[[str, str], click.Command | None],
    ) -> None:
        """Have these verbs with their summaries, in groups; `command` returns each one's command.

        `second_word` returns the command of a word that is not a verb, or whose meaning depends on
        the next word.
        """
        self._groups, self._command, self._second_word = groups, command, second_word
        self.verbs = {verb: text for each in groups.values() for verb, text in each.items()}

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the command line, or complete one for a shell."""
        if "_SHANTY_COMPLETE" in os.environ:
            from shanty.cli import completion

            completion.register()
        return super().main(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs in the order in which people meet them."""
        return list(self.verbs)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the verb's command."""
        if cmd_name not in self.verbs:
            return None
        command = self._command(cmd_name)
        _keep_summaries(command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without loading them."""
        *usual, _ = groups = self._groups
        width = max(map(len, self.verbs))
        for title in groups if shows_all(ctx) else usual:
            with formatter.section(title):
                rows = [(verb.ljust(width), text) for verb, text in groups[title].items()]
                formatter.write_dl(rows)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; for another word say what was probably meant."""
        word = args[0]
        # `shanty stop job` is of a run of that name.
        named = len(args) > 2 or word not in self.verbs
        other = self._second_word(word, args[1]) if named and args[1:] else None
        if other is not None:
            return word, other, args[1:]
        if word in self.verbs or word.startswith("-"):
            return super().resolve_command(ctx, args)
        from shutil import which

        from shanty.runtime.suggestions import closest

        nearest = closest(word, self.verbs)
        if word == "help":
            verb = [each for each in args[1:2] if each in self.verbs]
            fix = shlex.join(["shanty", *verb, "--help"])
        elif word.endswith((".py", ".ipynb")) or os.access(word, os.F_OK):
            fix = f"did you mean: {_line('run', *args)}"
        elif word in _ELSEWHERE:
            fix = f"did you mean: {_line(*_ELSEWHERE[word].split(), *args[1:])}"
        elif which(word):
            fix = f"to run that program: {_line('run', *args)}"
        elif nearest:
            fix = f"did you mean: {_line(nearest, *args[1:])}"
        else:
            fix = "`shanty --help` lists the commands"
        raise UsageError(f"shanty has no command {word!r}", fix=fix)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the options before the verb; those of a verb come after it."""
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            verb = next((word for word in words if word in self.verbs), None)
            if verb is not None:
                words.remove(verb)
            elif any(word.endswith(".py") for word in words):
                verb = "run"
            else:
                raise
            raise UsageError(
                f"shanty has no option {error.option_name}",
                "options come after the command",
                f"did you mean: {_line(verb, *words)}",
            ) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the verb; the reader of its output may leave, as `head` does."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            sys.exit(128 + signal.SIGPIPE)


def _line(*words: str) -> str:
    return shlex.join(["shanty", *words])


def _keep_summaries(command: click.Command) -> None:
    """Let the first sentence of a help text be the summary, in whole: click would cut it."""
    command.short_help = (command.help or "").partition("\n\n")[0]
    for each in command.commands.values() if isinstance(command, click.Group) else ():
        _keep_summaries(each)


def _version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(f"shanty {__version__}")
        ctx.exit()


@click.group(name="shanty", cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@help_all_option("Show all commands and exit.")
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version,
    help="Show the version.",
)  # fmt: skip
def app() -> None:
    """Distributed machine learning with MPI, without the set-up."""


def main() -> NoReturn:
    """Run the command line; SystemExit has its exit code."""
    Errors.as_json = False
    try:
        code = app.main(prog_name="shanty", standalone_mode=False)
    except ShantyError as error:
        show_error(error)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        if Errors.as_json or _asks_for_json(sys.argv[1:]):
            Errors.as_json = True
            show_error(UsageError(error.format_message()))
        else:
            error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        known = _known(error)
        if known is None:
            raise
        show_error(known)
        sys.exit(known.exit_code)
    sys.exit(code if isinstance(code, int) else 0)


def _asks_for_json(words: list[str]) -> bool:
    """Return True where --json is among the words before a script, which may have one, too."""
    own = takewhile(lambda word: word != "--" and not word.endswith(".py"), words)
    return "--json" in own


def _folder_is_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False


def _known(error: OSError) -> ShantyError | None:
    """Return the error for a current folder that is gone, a disk that is full, or a permission."""
    if error.errno == errno.ENOENT and _folder_is_gone():
        return folder_is_gone()
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        what = f"{error.filename or 'the output'} cannot be written"
        return StorageError(what, error.strerror or str(error), "free some space there")
    path = str(error.filename or "")
    if error.errno in (errno.ENOTDIR, errno.EEXIST, errno.EISDIR) and path:
        what = f"{path} cannot be used"
        return StorageError(what, error.strerror or "", "move away what is there")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and path:
        if Path(path).is_relative_to(home(os.environ)):
            return not_allowed(path, error)
        return StorageError(f"{path} cannot be used", error.strerror or "", f"see: ls -ld {path}")
    return None


def _open_streams() -> None:
    """Make sure that the standard streams are open, and that they accept every letter.

    If a stream were closed, another file would take its number. A letter that a stream lacks (in a
    name made of bytes, or in an old locale) is written as Python escapes it.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or Path(os.devnull).open("w")  # noqa: SIM115  to the end
    sys.stderr = sys.stderr or Path(os.devnull).open("w")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            utf_8 = codecs.lookup(stream.encoding).name == "utf-8"
            if stream.errors == "strict" or not utf_8:
                stream.reconfigure(errors="backslashreplace")


def program() -> NoReturn:
    """Run `main`, then end the process at once.

    To take the interpreter down in good order costs a tenth of a short run.
    """
    code: object = 0
    _open_streams()
    try:
        main()
    except SystemExit as leave:
        code = leave.code
    except KeyboardInterrupt:  # while it was leaving
        code = 128 + signal.SIGINT
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    status = code if isinstance(code, int) else int(code is not None)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        status = status or 128 + signal.SIGPIPE
    except OSError as error:
        show_error(StorageError("the output cannot be written", error.strerror or str(error)))
        status = status or StorageError.exit_code
    os._exit(status)
