"""What travels to every host of a run: the standard library only, clean for Python 3.9.

Here live the job, the errors, the run directory, all that knows one MPI from another
(`mpi`), the agents that watch a run (`agent`) and the start of every rank (`rank`).
"""
