"""Run all checks of some modules in one launch, since a framework takes longer to start than most
checks take to run. Arguments: the framework (see framework.py), the modules, joined by commas, and
then the arguments of these modules. One of them may have a `begin`, an `end` or a
`CHECK_BOUND` of its own, which take the place of the framework's. CHECKS in the environment names
the checks that run, where these are not all.
"""

from __future__ import annotations

import sys
from importlib import import_module
from os import environ

from checks import checks_of, run

BEFORE = "check_before_init"  # the one check that runs before the framework is started

if __name__ == "__main__":
    environ["FRAMEWORK"], modules, *sys.argv[1:] = sys.argv[1:]
    fw = import_module(f"on_{environ['FRAMEWORK']}")
    scopes = [vars(import_module(name)) for name in modules.split(",")]
    checks = [each for scope in scopes for each in checks_of(scope)]
    names = [each.__name__ for each in checks]
    assert len(set(names)) == len(names), f"two checks share a name: {sorted(names)}"
    chosen = environ.get("CHECKS", ",".join(names)).split(",")
    checks = [each for each in checks if each.__name__ in chosen]
    run([each for each in checks if each.__name__ == BEFORE], lambda: None)
    own = {name: value for scope in scopes for name, value in scope.items()}
    own.get("begin", fw.begin)()
    after = [each for each in checks if each.__name__ != BEFORE]
    run(after, fw.barrier, own.get("CHECK_BOUND", fw.BOUND))
    own.get("end", fw.end)()
