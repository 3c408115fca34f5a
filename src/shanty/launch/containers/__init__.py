"""Containers of a run: which engine and image its hosts take, and what is put into them.

`images.py` gets the image onto every host, `inside.py` prepares what the ranks find in a container
of it: MPI, Python environment, agents. The command lines are in `runtime/containers`.
"""
