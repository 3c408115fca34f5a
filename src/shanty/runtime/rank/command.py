"""Rewrites the command line of a rank.

`run.py` goes into that of Python: `python -u x.py` becomes `python -u run.py x.py`. A program that
is no more becomes the Python module that does its work: XGBoost had one of its own, `xgboost
train.conf key=value`, up to version 3.1.
"""

from __future__ import annotations

import os

_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_LETTERS = frozenset("bBdEiIOPqRsSuvx")
_MODULES = {"xgboost": "shanty.compat.xgboost_program"}


def is_python(program: str) -> bool:
    """Returns True for the file name of a Python interpreter: python, python3, python3.12."""
    name = os.path.basename(program)
    for known in ("python", "pypy"):
        if name.startswith(known):
            return name[len(known) :].replace(".", "").isdigit() or name == known
    return False


def insert_runner(argv: list[str], runner: str) -> list[str]:
    """Returns `argv` with `runner` before the script, `-m` or `-c` of a Python command line.

    What is not Python, or has nothing to run (`python --version`, a prompt, a script on
    standard input), comes back as it is.
    """
    if not argv or not is_python(argv[0]):
        return argv
    index = 1
    while index < len(argv):
        word = argv[index]
        if word in _WITH_VALUE:
            index += 2
        elif word.startswith(("-W", "-X", "--check-hash-based-pycs=")):
            index += 1
        elif not word.startswith("-"):
            return [*argv[:index], runner, *argv[index:]]
        elif word == "-" or word.startswith("--"):
            return argv
        else:
            letters = word[1:]
            flags = letters[: next((i for i, c in enumerate(letters) if c in "mc"), len(letters))]
            if not set(flags) <= _LETTERS:
                return argv
            rest = letters[len(flags) :]
            if rest:  # -m NAME, -mNAME, -c CODE; flags may stand before it in the same word
                kept = ["-" + flags] if flags else []
                value = [rest[1:]] if rest[1:] else []
                return [*argv[:index], *kept, runner, "-" + rest[0], *value, *argv[index + 1 :]]
            index += 1
    return argv


def stand_in(argv: list[str], python: str) -> list[str]:
    """Returns `argv`, or a line for `python` with the module for a program that is not there."""
    module = _MODULES.get(os.path.basename(argv[0]))
    if module is None:
        return argv
    import shutil

    if shutil.which(argv[0]) is not None:
        return argv
    return [python, "-m", module, *argv[1:]]


def become_next(name: str, words: list[str], own: str) -> None:
    """Becomes the program `name` that PATH has beside the one in the folder `own`, if there is."""
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        file = os.path.join(folder, name)
        if os.path.abspath(folder) != os.path.abspath(own) and os.access(file, os.X_OK):
            os.execv(file, [name, *words])
