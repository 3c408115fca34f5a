"""Writes a number with its noun: "1 core", "2 cores"."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Returns the number and `noun`, which is given as for one: counted(2, "host") is "2 hosts"."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith('s') else 's'}"
