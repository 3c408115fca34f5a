"""Collectives over MPI for the tensors of any framework; this package imports none.

A framework's package is an adapter: it passes its tensors as they are, and `kernels.Kernels` for
them (memory, arithmetic). docs/how-to/horovod.md has the modules.
"""

from shanty._singleton import leave_nothing

leave_nothing()
