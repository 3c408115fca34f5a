"""Completes the words of a command line for bash, zsh and fish."""

from __future__ import annotations

import contextlib

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from shanty.client.terminal.completion import files_as
from shanty.runtime.errors import ShantyError

VARIABLE = "_SHANTY_COMPLETE"  # set by the shell's part: the shell, and what is wanted
_OTHERS_WORDS = ("horovodrun", "dmlc-submit")  # what follows is a command with words of its own
_FISH_SPLITS, _FISH_SPLITS_ONCE = 'string split "," ', 'string split -m 1 "," '
_ZSH_REGISTERS = "    compdef "
_ZSH_BEGINS = "    (( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }\n"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what a shell needs to complete shanty's words.

    \b
    Examples:
      eval "$(shanty completion bash)"   in ~/.bashrc
      eval "$(shanty completion zsh)"    in ~/.zshrc
      shanty completion fish > ~/.config/fish/completions/shanty.fish
    """
    print(SHELLS[shell](ctx.find_root().command, {}, "shanty", VARIABLE).source(), end="")


def register() -> None:
    """Let click complete as we do."""
    for name, shell in SHELLS.items():
        add_completion_class(shell, name)


# ------------------------------------------------------------------------------------- shells


class _Completing(ShellComplete):
    """Completes a line of ours; behind a script, or another command, there are only files."""

    def get_completions(self, args: list[str], incomplete: str) -> list[CompletionItem[str]]:
        """Return what may stand there; nothing where that cannot be known."""
        with contextlib.suppress(ShantyError, OSError, click.ClickException):
            if args[:1] == ["run"] and _has_command(self.cli, args[1:]):
                return files_as(incomplete)
            found = super().get_completions(args, incomplete)
            option, equals, _ = incomplete.partition("=")
            if equals and option.startswith("--"):  # for this shell it is all one word
                for item in found:
                    item.value = f"{option}={item.value}"
            return found or (files_as(incomplete) if args[:1] and args[0] in _OTHERS_WORDS else [])
        return []


class _Bash(_Completing, BashComplete):
    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words; bash takes `--mpi=x` for three of them."""
        args, incomplete = super().get_completion_args()
        if incomplete == "=" and args and args[-1].startswith("--"):
            return args, ""
        if len(args) > 1 and args[-1] == "=" and args[-2].startswith("--"):
            return args[:-1], incomplete
        return args, incomplete


class _Zsh(_Completing, ZshComplete):
    source_template = ZshComplete.source_template.replace(
        _ZSH_REGISTERS, _ZSH_BEGINS + _ZSH_REGISTERS
    )


class _Fish(_Completing, FishComplete):
    source_template = FishComplete.source_template.replace(_FISH_SPLITS, _FISH_SPLITS_ONCE)


SHELLS: dict[str, type[ShellComplete]] = {"bash": _Bash, "zsh": _Zsh, "fish": _Fish}


def _has_command(cli: click.Command, args: list[str]) -> bool:
    """Return true where the words for `run` have come to what is to be run."""
    assert isinstance(cli, click.Group)
    run = cli.get_command(click.Context(cli), "run")
    assert run is not None
    return bool(run.make_context("run", list(args), resilient_parsing=True).params["command"])
