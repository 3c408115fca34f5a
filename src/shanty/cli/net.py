"""`shanty net`: which networks join hosts, and how fast they are."""

from __future__ import annotations

import click


@click.command()
def net() -> None:
    """Measure the networks that join hosts."""
