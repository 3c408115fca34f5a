"""The common part of Horovod's frameworks."""

from shanty.collectives import process_sets
from shanty.compat.aliases import alias

alias(__name__, process_sets=process_sets)
