"""Prints errors, as text or as JSON."""

from __future__ import annotations

import contextlib
import sys

from shanty.runtime.errors import ShantyError


class Errors:
    """Says how errors are printed: as JSON once --json was among a verb's options."""

    as_json = False


def show_error(error: ShantyError) -> None:
    """Print an error the way all of them look."""
    if Errors.as_json:
        import json

        fields = {"what": error.what, "why": error.why, "fix": error.fix}
        line = json.dumps({"event": "error", **fields, "exit_code": error.exit_code})
        with contextlib.suppress(OSError):  # a full disk: then it is said as to a person
            print(line, flush=True)
            return
    red, bold, off = ("\033[31m", "\033[1m", "\033[0m") if sys.stderr.isatty() else ("", "", "")
    lines = str(error).splitlines()
    with contextlib.suppress(OSError):
        print(f"{red}{bold}shanty: {lines[0]}{off}", *lines[1:], sep="\n", file=sys.stderr)
