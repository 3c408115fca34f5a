"""How a rank starts: the beginning of its command line, and its environment. Light to load."""

from __future__ import annotations

import os
from typing import Dict, Iterable, List, Mapping, Sequence

from shanty.runtime import platform
from shanty.runtime.plan import Environment

NOTHING = "-"  # stands for an empty word in a command line


def rank_prefix(
    boot: Sequence[str],
    scratch: str = "",
    world: str = "0",
    redirected: str = "",
    decided: Iterable[str] = (),
) -> List[str]:
    """The start of every rank's command line.

    `boot` starts shanty's programs on the lead host. With `scratch`, ranks start through the
    script that each host has there, so that the line is the same for all. The script gets the
    launcher's `world`, the target to which its output is `redirected`, and the variables that the
    launcher's line itself sets for its ranks (`decided`).
    """
    if not scratch:
        return [*boot, "rank.exec"]
    words = [world, redirected or NOTHING, ",".join(sorted(decided)) or NOTHING]
    return ["/bin/sh", f"{scratch}/rank", *words]


def home_folder() -> str:
    """Returns the user's home from the password database; "/" where it does not have one."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_dir or "/"
    except KeyError:
        return "/"


def environment(
    own: Environment, shared: Mapping[str, str], there: Mapping[str, str]
) -> Dict[str, str]:
    """What is set for all that starts on a host, which has the variables `there` already.

    `shared` is set on all hosts alike. HOME and PATH are always set, as MPIs fail without them
    and services may start programs so: Open MPI 5 needs HOME, 4.1 looks for ssh along PATH.
    """
    default = {name: value for name, value in own.default.items() if name not in there}
    if not there.get("HOME"):
        default.setdefault("HOME", home_folder())
    if not there.get("PATH"):
        default.setdefault("PATH", os.defpath)
    values = {"SHANTY_STACKS_SIGNAL": str(platform.STACKS_SIGNAL), **default}
    values["SHANTY_MEMORY"] = str(platform.usable_memory())  # bytes
    values.update({**shared, **own.own})
    for name, first in own.first.items():
        rest = values.get(name) or there.get(name, "")
        values[name] = f"{first}{os.pathsep}{rest}" if rest else first
    return values
