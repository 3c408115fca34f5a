"""`shanty completion`: what a shell needs to complete shanty's command lines."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for a shell.

    \b
    For bash, in ~/.bashrc:  eval "$(shanty completion bash)"
    For zsh, in ~/.zshrc:    eval "$(shanty completion zsh)"
    For fish:                shanty completion fish > ~/.config/fish/completions/shanty.fish
    """
    from click.shell_completion import get_completion_class

    from shanty.cli.app import app

    kind = get_completion_class(shell)
    assert kind is not None  # Choice admits only those that click knows
    click.echo(kind(app, {}, "shanty", "_SHANTY_COMPLETE").source())
