"""Reads a line for torchrun or its predecessor, `python -m torch.distributed.launch`.

The options are those of PyTorch 1.9 to 2.13. An option that the line lacks is taken from the
variable PET_… of its name, as torchrun does.
"""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from typing import List, Union

from shanty.runtime.errors import UsageError
from shanty.runtime.lines.option_table import NUMBER, SWITCH, TEXT, WHOLE, Given
from shanty.runtime.lines.process_line import (
    ALL_HOSTS,
    ITSELF,
    OUTPUT,
    RETRIES,
    ProcessLine,
    spelled_both_ways,
)

OLD = "torch.distributed.launch"
_PLACES = ("auto", "cpu", "gpu")

_ROWS = (
    # How many and where
    ("--nnodes", TEXT, "@nodes"),
    ("--nproc-per-node", TEXT, "@per-node"),
    ("--standalone", SWITCH, "@standalone"),
    ("--node-rank", WHOLE, ALL_HOSTS),
    # How they find each other
    ("--rdzv-backend / --rdzv-endpoint / --rdzv-id / --rdzv-conf", TEXT, ITSELF),
    ("--master-addr / --local-addr", TEXT, ITSELF),
    ("--master-port", WHOLE, ITSELF),
    # What they run
    ("-m --module", SWITCH, "@switch module"),
    ("--no-python", SWITCH, "@switch no_python"),
    ("--run-path", SWITCH, ""),
    ("--role", TEXT, "=ROLE_NAME"),
    ("--virtual-local-rank", SWITCH, "!each rank of a run keeps its local rank|leave it out"),
    ("--numa-binding", TEXT, "-`shanty run --cpus-per-rank N` binds ranks to cores"),
    # How they are watched
    ("--max-restarts", WHOLE, RETRIES),
    ("--monitor-interval", NUMBER, "-a run notices at once that a rank has ended"),
    ("--start-method", TEXT, "-each rank is a program of its own"),
    ("--signals-to-handle", TEXT, "-`shanty stop` ends a run"),
    ("--shutdown-timeout", WHOLE, "-`shanty stop` ends a run"),
    ("--event-log-handler", TEXT, "-`shanty ps` and `shanty show` report what has happened"),
    # Their output
    ("--log-dir / --logs-specs / --duplicate-stdout-filters", TEXT, OUTPUT),
    ("--duplicate-stderr-filters / --local-ranks-filter", TEXT, OUTPUT),
    ("-r --redirects / -t --tee", TEXT, OUTPUT),
    ("-h --help", SWITCH, "@ask help"),
)
OPTIONS = spelled_both_ways(*_ROWS)
_OLD_OPTIONS = spelled_both_ways(*_ROWS, ("--use-env", SWITCH, "@switch use_env"))


@dataclass
class Wanted(ProcessLine):
    """A line of torchrun, and what it asks for."""

    program = "torchrun"
    options = OPTIONS
    says_number = "--nproc-per-node"
    says_hosts = "--nnodes"

    default: Union[int, str] = 1
    use_env: bool = True

    def completed(self, given: List[Given]) -> List[Given]:
        """Returns the options of the line, and those from variables that the line lacks."""
        said = {option.names[0] for _, option, _ in given}
        found: List[Given] = []
        for option in dict.fromkeys(self.options.values()):
            long = next(name for name in option.names if name.startswith("--"))
            variable = "PET_" + long[2:].replace("-", "_").upper()
            value = self.environ.get(variable)
            if value is None or option.names[0] in said or long in ("--help", "--use-env"):
                continue
            if option.takes != SWITCH:
                option.check(f"${variable}", [value])
                found.append((f"${variable}", option, value))
            elif value not in ("", "0"):
                found.append((f"${variable}", option, ""))
        return [*found, *given]

    def _standalone(self, *_: str) -> None:
        self.nodes = 1, 1

    def _per_node(self, spelled: str, value: str, _: str) -> None:
        if value in _PLACES:
            self.per_node = value
        elif re.fullmatch(r"0*[1-9][0-9]{0,6}", value):
            self.per_node = int(value)
        else:
            raise UsageError(
                f"{spelled} takes a number from 1 on, auto, cpu or gpu, not {value[:40]!r}"
            )


@dataclass
class OldWanted(Wanted):
    """A line of torch.distributed.launch, which gives scripts their local rank as an argument."""

    program = OLD
    options = _OLD_OPTIONS

    use_env: bool = False

    def checked(self) -> None:
        """Raises UsageError for options that contradict each other."""
        super().checked()
        if self.no_python and not self.use_env:
            raise UsageError(
                f"{self.program} with --no-python takes --use-env, too",
                "it does not pass the local rank to a program that is not Python",
                "add --use-env",
            )
        if not self.use_env:
            self.local_rank = "--local-rank"

    def settle(self, python: str) -> None:
        """Spells the argument as the PyTorch of that interpreter does: since 2.0 with a dash."""
        root = os.path.dirname(os.path.dirname(python))
        pattern = f"{glob.escape(root)}/lib/python3*/site-packages/torch-[01].*-info"
        if self.local_rank and glob.glob(pattern):
            self.local_rank = "--local_rank"
