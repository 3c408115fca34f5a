"""The layer under every front end: the command line, the SDK, the dashboard and integrations.

It makes jobs of options, starts runs, and says what is known of them. Only `terminal` prints to a
terminal or knows click.
"""

import sys

if sys.platform == "win32":
    raise SystemExit(
        "shanty: it does not run on Windows itself\n"
        "  why: MPI's launchers, and the signals and files that shanty works with, are of Unix\n"
        "  fix: install WSL (`wsl --install`), and shanty inside it, as on any Linux"
    )
