"""`shanty doctor`: what is wrong with hosts, and its cure."""

from __future__ import annotations

import click


@click.command()
def doctor() -> None:
    """Find out what is wrong with hosts and the network between them."""
