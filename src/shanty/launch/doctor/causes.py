"""Which findings only follow from others on the same host, and are left out beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shanty.launch.finding import Finding, Level

# What an error (on the left) explains on the same host.
EXPLAINS: Mapping[str, tuple[str, ...]] = {
    "home-readonly": ("disk-full", "inodes-full", "run-key-refused"),
    "disk-full": ("run-key-refused",),
    "inodes-full": ("run-key-refused",),
    "lead-blocked": ("run-key-refused",),
}


def settle(findings: Iterable[Finding]) -> list[Finding]:
    """The findings without those that an error on the same host explains."""
    every = list(findings)
    explained = {
        (consequence, each.host)
        for each in every
        if each.level is Level.ERROR
        for consequence in EXPLAINS.get(each.code, ())
    }
    return [each for each in every if (each.code, each.host) not in explained]
