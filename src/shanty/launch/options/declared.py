"""What a target declares of itself, before it is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from shanty.launch.options.option import Option, number

# The number of hosts is a field of every job; only targets that declare it take it.
NODES = number("nodes", "--nodes", "How many nodes [as many as the ranks need].", toml=(int,))


class Declared(NamedTuple):
    """Declares a target: `scheme` is its name, as in `--on SCHEME`; people read `title`.

    A job may have the `options` only if it goes to this target. A target is `late` if its hosts
    are not known when a run is submitted, and `needs_image` if its hosts have nothing but the
    image. `sites`: config.toml may have options for each site of the target. `of_machines`: the
    fields of a job that a machine type may set. `make` makes the target of `base.Surroundings`;
    the registry knows shanty's own.
    """

    scheme: str
    title: str
    options: tuple[Option, ...] = ()
    late: bool = False
    needs_image: bool = False
    sites: bool = False
    of_machines: tuple[str, ...] = ()
    make: Callable[[Any], Any] | None = None

    @property
    def fields(self) -> frozenset[str]:
        """The fields of its options."""
        return frozenset(each.field for each in self.options)

    @property
    def keys(self) -> Mapping[str, Option]:
        """Its options by their keys in its own table of shanty.toml and config.toml.

        A key that begins with the scheme omits it.
        """
        return {
            each.key.removeprefix(f"{self.scheme}_"): each for each in self.options if each.toml
        }
