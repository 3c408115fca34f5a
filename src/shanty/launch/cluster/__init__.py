"""Work on hosts before a run: connections, keys, MPI, Python environment, workspace.

Each step is a module that asks the RPC clients (`shanty.runtime.rpc`) of all hosts side by side.
"""
