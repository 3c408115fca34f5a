"""What --help says: sentences that are whole, options in groups, examples that can be typed."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

import click
import pytest

from command_line import Cli
from shanty.client.terminal.grouped import GroupedCommand
from shanty.program import app


def commands(group: click.Group, *before: str) -> Iterator[tuple[str, ...]]:
    """The words of each verb, and of the verbs of those."""
    for name in group.list_commands(click.Context(group)):
        yield (*before, name)
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from commands(command, *before, name)


VERBS = list(commands(app))
LEAVES = [words for words in VERBS if not any(other[:-1] == words for other in VERBS)]


@pytest.mark.parametrize(
    "words", [(), ("hosts",), ("lab",), ("mpi",), ("experiments",)], ids=" ".join
)
def test_no_summary_is_cut(cli: Cli, words: tuple[str, ...], monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    listed = cli(*words, "--help-all" if not words else "--help").out.partition("  -h, --help")[2]
    listed = [line for line in listed.splitlines()[1:] if line and not line.endswith(":")]
    assert len(listed) >= 4
    assert not [line for line in listed if line.endswith("...") or len(line) > 80]
    assert all(line.startswith("  ") and line.endswith((".", "].")) for line in listed)


def test_the_summary_of_a_verb_is_that_of_its_command() -> None:
    context = click.Context(app)
    found = {verb: app.get_command(context, verb) for verb in app.verbs}
    assert {verb: each.short_help for verb, each in found.items() if each} == app.verbs


def parsed(words: list[str]) -> click.Context:
    """The command line that the words are, as far as click tells; UsageError for bad ones."""
    command: click.Command = app
    context = None
    while True:
        context = command.make_context(words[0], words[1:], parent=context)
        if not isinstance(command, click.Group):
            return context
        name, found, rest = command.resolve_command(
            context, [*context._protected_args, *context.args]
        )
        assert found is not None and name is not None
        command, words = found, [name, *rest]


def test_the_help_of_every_verb_fits_a_screen(cli: Cli, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = {words for words in [(), *VERBS] if len(cli(*words, "--help").out.splitlines()) > 40}
    assert not long


def test_compatibility_is_in_the_whole_help_only(cli: Cli) -> None:
    *usual, last = app._groups.values()
    short, whole = cli("--help").out, cli("--help-all").out
    for verb in last:
        assert f"\n  {verb} " not in short
        assert f"\n  {verb} " in whole
    for verb in (verb for verbs in usual for verb in verbs):
        assert f"\n  {verb} " in short


@pytest.mark.parametrize("words", LEAVES, ids=" ".join)
def test_an_example_can_be_typed(cli: Cli, words: tuple[str, ...]) -> None:
    text = cli(*words, "--help").out
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ")]
    examples = [line for line in lines if line.startswith(("shanty ", 'eval "$(shanty '))]
    assert examples
    for line in examples:
        shell = line.removeprefix('eval "$(').partition(")")[0].partition(" > ")[0]
        typed = shlex.split(shell)
        assert tuple(typed[1 : 1 + len(words)]) == words
        assert parsed(typed).command.name == words[-1]


def test_every_option_of_run_is_in_one_group(cli: Cli) -> None:
    run = app.get_command(click.Context(app), "run")
    assert isinstance(run, GroupedCommand)
    grouped = [name for names in run.groups.values() for name in names]
    known = [param.name for param in run.params if isinstance(param, click.Option)]
    known.remove("help_all")
    assert sorted(grouped) == sorted(map(str, known))
    text = cli("run", "--help-all").out
    for title in run.groups:
        assert f"\n{title}:\n" in text
    for name in known:
        (flag,) = [p.opts[-1] for p in run.params if p.name == name]
        assert text.count(f"{flag} ") + text.count(f"{flag}\n") >= 1
