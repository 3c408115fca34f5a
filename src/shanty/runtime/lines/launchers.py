"""Reads the line of any launcher that a run stands in for."""

from __future__ import annotations

import os
from typing import Mapping, Optional, Sequence, Type

from shanty.runtime.lines.command import launcher_of
from shanty.runtime.lines.option_table import Line
from shanty.runtime.lines.process_line import ProcessLine
from shanty.runtime.mpi.hostfiles import Read, read_file


def parse(
    name: str,
    words: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    read: Read = read_file,
) -> ProcessLine:
    """Returns the line `words` of the launcher `name`, both as `launcher_of` returns them.

    UsageError or NotFoundError for a line that is refused.
    """
    from shanty.runtime.lines import accelerate_launch, deepspeed, torchrun

    kinds: Mapping[str, Type[ProcessLine]] = {
        "accelerate-launch": accelerate_launch.Wanted,
        "deepspeed": deepspeed.Wanted,
        torchrun.OLD: torchrun.OldWanted,
    }
    return kinds.get(name, torchrun.Wanted)(environ, read).parsed(words)


def parse_in_run(
    name: str,
    words: Sequence[str],
    environ: Mapping[str, str] = os.environ,
    read: Read = read_file,
) -> Optional[Line]:
    """Returns a line within a run; None for a line that is left to the launcher itself."""
    if name in ("horovodrun", "dmlc-submit", "mlx.launch"):
        from shanty.runtime.lines import dmlc_submit, horovodrun, mlx_launch

        if name == "mlx.launch":
            return mlx_launch.parse(words, read)
        kind = horovodrun.Wanted if name == "horovodrun" else dmlc_submit.Wanted
        return kind(environ, read).parsed(words)
    found = launcher_of([name, *words])  # None: a subcommand that starts no ranks
    return None if found is None else parse(*found[:2], environ, read)
