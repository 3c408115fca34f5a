"""What is known of hosts and done on them before a run: contact, keys, MPI, Python, code.

Each step is a module that asks the RPC clients (`shanty.runtime.rpc`) of all hosts side by side.
"""
