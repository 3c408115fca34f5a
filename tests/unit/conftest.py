"""How Hypothesis looks for counterexamples: as long as it takes, for a busy machine is no error.

And no MPI is started: nothing here needs it, and Open MPI 5 leaves a segment of shared memory
behind for a process that no launcher started.
"""

import mpi4py
from hypothesis import HealthCheck, settings

mpi4py.rc.initialize = False

settings.register_profile("unit", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unit")
