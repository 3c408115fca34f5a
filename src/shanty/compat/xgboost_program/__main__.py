"""The program: `python -m shanty.compat.xgboost_program train.conf key=value`."""

from __future__ import annotations

import sys
from contextlib import suppress

import shanty
from shanty.compat.xgboost_program.configuration import USAGE, ConfigurationError, settings_of

# The Python of all that a script imports of shanty, as in runtime/rank/import_hooks.py.
NEEDS = (3, 11)


def main(words: list[str]) -> int:
    """Does what the words ask for; returns the exit code."""
    if not words or words[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if words else 2
    if words[0] in ("-V", "--version"):
        from importlib.metadata import PackageNotFoundError, version

        for name in ("xgboost-cpu", "xgboost"):
            with suppress(PackageNotFoundError):
                print(f"XGBoost: {version(name)}")
                return 0
        print("XGBoost is not installed", file=sys.stderr)
        return 1
    if sys.version_info < NEEDS:  # first: a Python that is too old need not have XGBoost
        own, wanted = (".".join(map(str, each[:2])) for each in (sys.version_info, NEEDS))
        print(
            f"xgboost: this is Python {own}, and shanty's stand-in for XGBoost's program needs "
            f"{wanted} or later, with XGBoost: choose it with `shanty run --python`",
            file=sys.stderr,
        )
        return 1
    try:
        settings = settings_of(words)
    except ConfigurationError as error:
        print(f"xgboost: {error}", file=sys.stderr)
        return 2
    reason = settings.missing() or (settings.unwritable() if shanty.rank() == 0 else "")
    if reason:
        print(f"xgboost: {reason}", file=sys.stderr)
        return 2
    try:
        from shanty.compat.xgboost_program.tasks import run
    except ImportError as error:  # its words are for people
        print(f"xgboost: {error}", file=sys.stderr)
        return 1
    return run(settings)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
