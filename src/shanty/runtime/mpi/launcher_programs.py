"""Knows the programs of launchers; light, as what stands in for ssh imports it."""

from __future__ import annotations

# What a launcher has started on other hosts, through ssh.
DAEMONS = ("prted", "orted", "hydra_pmi_proxy", "hydra_bstrap_proxy")
_OWN = ("prte", "orte", "hydra_", "mpi")


def starts_daemon(command: str) -> bool:
    """Returns True for a command line with which a launcher starts its daemon on another host."""
    return any(daemon in command for daemon in DAEMONS)


def is_launchers(name: str) -> bool:
    """Returns True for the file name of a launcher or of one of its daemons."""
    return name.startswith(_OWN)
