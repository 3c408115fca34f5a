"""Starts every rank: `exec` wraps any program, `run` wraps a Python one.

`instrumentation` is what both `run` and the fallback `hook` do inside a Python process; `shim`
stands in for mpirun and other launchers inside a run.
"""
