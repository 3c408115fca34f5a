"""What Slurm declares: its options."""

from __future__ import annotations

from shanty.launch.options.declared import NODES, Declared
from shanty.launch.options.option import switch, text

_PLACE = (
    text("partition", "--partition", "The partition of Slurm.", "NAME"),
    text("account", "--account", "The account that pays.", "NAME"),
    text("qos", "--qos", "The quality of service.", "NAME"),
)
_NODES = (
    text("constraint", "--constraint", "Features that the nodes must have.", "FEATURES"),
    text("reservation", "--reservation", "A reservation of nodes.", "NAME"),
    switch("exclusive", "--exclusive", "Whole nodes, with nobody else on them."),
)
_REQUEUE = switch("requeue", "--requeue", "Queue it again when it was preempted, or a node failed.")
_MORE = text("slurm", "--slurm", "More options of sbatch, in one text.", '"OPTIONS"')

SLURM = Declared(
    "slurm",
    "Slurm",
    (*_PLACE, NODES, *_NODES, _REQUEUE, _MORE),
    late=True,
    sites=True,
    of_machines=tuple(each.field for each in (*_PLACE, *_NODES, _MORE)),
)
