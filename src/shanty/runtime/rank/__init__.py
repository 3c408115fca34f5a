"""The start of every rank: `exec` wraps any program, `run` wraps a Python one.

`watch` is what both `run` and the fallback `hook` do inside a Python process; `shim` stands
in for mpirun and its kin inside a run.
"""
