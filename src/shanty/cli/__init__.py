"""The command line: modules of one verb or a few, which parse words and print what came of them.

Nothing is decided here, and nothing heavy is imported before it is needed, so that `--help`
and the start of a run stay quick.
"""

import sys

if sys.platform == "win32":
    raise SystemExit(
        "shanty: it does not run on Windows itself\n"
        "  why: MPI's launchers, and the signals and files that shanty works with, are of Unix\n"
        "  fix: install WSL (`wsl --install`), and shanty inside it, as on any Linux"
    )
