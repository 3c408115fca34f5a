"""Builds the ssh command that leads to another host of a run, by the run's own key only."""

from __future__ import annotations

import os
from typing import Any, List, Mapping


def ssh_command(
    host: Mapping[str, Any], key: str, known_hosts: str, timeout: int = 10
) -> List[str]:
    """The command line up to the host; `key` and `known_hosts` are files.

    `host` has "address", "port", "user", and "alias", the name that `known_hosts` has for it.
    `timeout` is in seconds, for the connection.
    """
    options = {
        "IdentityFile": quoted(key),
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "BatchMode": "yes",
        "UserKnownHostsFile": quoted(known_hosts),
        "GlobalKnownHostsFile": os.devnull,
        "HostKeyAlias": host["alias"],
        "StrictHostKeyChecking": "yes",
        "CheckHostIP": "no",
        "UpdateHostKeys": "no",
        "ConnectTimeout": str(timeout),
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "2",
        "LogLevel": "ERROR",
        "ControlPath": "none",
        "Port": str(host["port"]),
    }
    words = [word for item in options.items() for word in ("-o", "=".join(item))]
    return ["ssh", "-F", "none", "-T", *words, "-l", host["user"], host["address"]]


def quoted(path: str) -> str:
    """A path as the value of one of ssh's options, which are split at spaces."""
    return '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
