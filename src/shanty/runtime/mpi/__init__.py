"""Holds all that knows one MPI from another; no other folder holds an `if` on a flavour.

`installation` is an MPI found on a machine, `layout` where ranks go, `flavours` each MPI's host
file, command line and environment; `parser` reads a user's launcher line, `translate` writes it.
"""
