"""Starts runs from Python: `submit`, tasks and what can be asked of a run.

It does what the command line does, by the same parts, and needs no server.
"""
