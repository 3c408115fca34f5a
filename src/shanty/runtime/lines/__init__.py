"""Reads the command lines of other launchers and of container engines.

Nothing here starts a process: `rank` has the programs that do.
"""
