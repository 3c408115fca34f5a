"""The terminal's side of a run: options as click has them, output, Ctrl-C, errors, completion."""
