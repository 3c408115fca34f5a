"""The agents of a run: `controller` owns its status, `node_agent` is the parent of its processes.

`mpi_world` judges what the ranks report, `workers` has the other hosts, `cleanup` removes what
the processes left behind.
"""
