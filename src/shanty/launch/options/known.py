"""The targets that are known here: shanty's own, and those of other packages.

Other packages add theirs by an entry point of the group `shanty.targets`: its name is the scheme,
its object a `Declared`, or a function that makes the target of `base.Surroundings`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from shanty.launch.options.declared import Declared
from shanty.launch.options.kubernetes import KUBERNETES
from shanty.launch.options.option import Option
from shanty.launch.options.slurm import SLURM
from shanty.runtime.errors import NotFoundError, UsageError
from shanty.runtime.spec import JobSpec

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_GROUP = "shanty.targets"
LOCAL = Declared("local", "this machine")
SSH = Declared("ssh", "hosts")
MACHINES = Declared("machines", "machine types", late=True)
BUILTIN = (LOCAL, SSH, SLURM, KUBERNETES, MACHINES)


def external() -> tuple[Declared, ...]:
    """Return the targets of other packages; to look for them takes time."""
    return _external(tuple(sys.path))


@lru_cache
def _external(_path: tuple[str, ...]) -> tuple[Declared, ...]:
    from importlib.metadata import entry_points

    own = {each.scheme for each in BUILTIN}
    return tuple(_loaded(each) for each in entry_points(group=_GROUP) if each.name not in own)


def _loaded(entry: EntryPoint) -> Declared:
    """Return what a package declares; where it does not work, a target that says why."""

    def broken(error: Exception) -> NotFoundError:
        package = entry.dist.name if entry.dist else entry.value
        return NotFoundError(
            f"the target {entry.name} of the package {package} does not work here",
            f"{type(error).__name__}: {error}",
            "install it again, in a version for this version of shanty",
        )

    try:
        found = entry.load()
        if not isinstance(found, Declared):
            found = Declared(entry.name, entry.name, late=True, make=found)
        _check(found, entry.name)
    except Exception as error:  # noqa: BLE001  whatever that package does wrong
        reason = broken(error)

        def refuse(_here: Any) -> NoReturn:
            raise reason

        return Declared(entry.name, entry.name, late=True, make=refuse)

    def make(here: Any) -> Any:
        try:
            assert found.make is not None
            return found.make(here)
        except Exception as error:
            raise broken(error) from error

    return found._replace(make=make)


def _check(found: Declared, name: str) -> None:
    """Raise ValueError for a declaration that could clash with another one."""
    if found.scheme != name or found.make is None:
        raise ValueError(f"it declares {found.scheme!r}, or does not say how it is made")
    for option in found.options:
        flags = option.flags.split()
        starts = all(flag.startswith(f"--{name}-") for flag in flags)
        if option.field != "nodes" and not (starts and option.field.startswith(f"{name}_")):
            raise ValueError(f"{option.flags} ({option.field}) does not begin with its name")


def every() -> Iterator[Declared]:
    """Yield all targets; other packages are looked at after all of shanty's own."""
    yield from BUILTIN
    yield from external()


def declared(scheme: str) -> Declared | None:
    """Return the target of that name; None where no package has it."""
    return next((each for each in every() if each.scheme == scheme), None)


def option_of(field: str) -> tuple[Declared, Option] | None:
    """Return the option that has this field, and the first target that has declared it."""
    targets = BUILTIN if field in JobSpec.__dataclass_fields__ else every()
    found = ((each, option) for each in targets for option in each.options)
    return next((pair for pair in found if pair[1].field == field), None)


def refuse_foreign_options(job: JobSpec, where: str, own: Declared | None = None) -> None:
    """Raise UsageError where a job has options of a target that it does not go to.

    `own` is the target that it does go to, `where` that for people.
    """
    for name in job.given():
        pair = option_of(name) if own is None or name not in own.fields else None
        if pair is not None:
            other, option = pair
            raise UsageError(
                f"{option.flag} is for {other.title}, and this run goes to {where}",
                fix=f"add --on {other.scheme}, or leave it out",
            )
        if name in job.options and (own is None or name not in own.fields):
            raise UsageError(
                f"{name} is an option of a target that is not installed here",
                fix="install the package that has it, or leave the option out",
            )
