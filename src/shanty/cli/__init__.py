"""The command line: one module a verb, which parses its words and prints what came of it.

Nothing is decided here, and nothing heavy is imported before it is needed, so that `--help`
and the start of a run stay quick.
"""
