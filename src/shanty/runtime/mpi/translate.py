"""Translates a user's launcher line, in any MPI's dialect, for the MPI in use.

The line comes without the launcher's own name, as `sys.argv[1:]`, and goes out the same way.
Which options there are is in `options`, where ranks go in `placement`, the two dialects in
`to_openmpi` and `to_hydra`.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, FrozenSet, List, Mapping, Optional, Sequence, Type

from shanty.runtime.mpi import parameters
from shanty.runtime.mpi.flavour import Flavour, settled
from shanty.runtime.mpi.hostfiles import read_file
from shanty.runtime.mpi.layout import Layout
from shanty.runtime.mpi.options import OPTIONS
from shanty.runtime.mpi.parser import parse
from shanty.runtime.mpi.to_hydra import ToHydra
from shanty.runtime.mpi.to_openmpi import ToOpenMPI
from shanty.runtime.mpi.translation import Translation, Translator

_TRANSLATORS: Dict[str, Type[Translator[Any]]] = {"openmpi": ToOpenMPI, "hydra": ToHydra}


def decided_by(argv: Sequence[str], flavour: Flavour) -> FrozenSet[str]:
    """Returns the variables that a line decides by its options, so that nobody else may set them.

    Raises TranslationError as `translate` does.
    """
    names: List[str] = []
    for option in (one for context in parse(argv).contexts for one in context.options):
        if option.name == "iface":
            names += (*flavour.launch_networks, *flavour.rank_networks)
        elif option.name == "x" and "=" in option.value:
            names.append(option.value.partition("=")[0])
        elif option.name in ("env", "genv"):
            names.append(option.values[0])
        elif option.name.endswith("mca"):
            names += ("OMPI_MCA_" + option.value, "PRTE_MCA_" + option.value)
            if option.value in parameters.RANK_INTERFACES:
                names += flavour.rank_networks
            if option.value in parameters.RANK_INTERFACES | parameters.LAUNCH_INTERFACES:
                names += flavour.launch_networks
    return settled(names, flavour.choices)


def translate(
    argv: Sequence[str],
    flavour: Flavour,
    layout: Layout,
    *,
    prefix: Sequence[str] = (),
    given_environment: Mapping[str, str],
    read: Callable[[str], Optional[str]] = read_file,
    converted: str = "",
) -> Translation:
    """Translates the launcher's line `argv` for `flavour`; both without the launcher itself.

    `prefix` goes in front of each program of the line, unless it is there already; where it is
    not empty, the launcher's own tagging of output is left out. `given_environment` is what
    the launcher would inherit. `read` returns the text of a host file or None; a file in the
    wrong dialect is written anew under the path `converted` (by default beside the run's own
    host file), by the caller, from the result's `files`.

    A line that only asks for the version or for help comes out as that and has no program.

    Raises TranslationError, and nothing else, for an option that no launcher has or that this
    one has no counterpart for, naming it, and for a line that makes no sense.
    """
    line = parse(argv)
    if line.asks:
        answer = OPTIONS[line.asks].rules[flavour.name].partition(" ")[2]
        return Translation((answer,), {}, (), ())
    target = converted or (layout.hostfile or "hostfile") + ".translated"
    translator = _TRANSLATORS[flavour.family]
    made = translator(flavour, layout, tuple(prefix), given_environment, read, target)
    return made.translation(line)
