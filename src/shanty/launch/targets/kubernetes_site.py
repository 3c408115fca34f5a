"""What the site of a run on Kubernetes holds beside its hosts, which are the pods."""

from __future__ import annotations

from typing import Any, NamedTuple

from shanty.runtime.site import Json, Site


class ClusterSite(NamedTuple):
    """The cluster of a run, and how far its watcher has come.

    `place` is "CONTEXT/NAMESPACE", `flavour` that of the MPI in an operator's image,
    `kubeconfig` the value of KUBECONFIG with whole paths, "" for the user's default. `tried`: the
    watcher has begun. `made`: there may be objects in the cluster. `begun`: an operator has the
    run. `deleted`: the objects are gone again.
    """

    place: str = ""
    flavour: str = ""
    kubeconfig: str = ""
    tried: bool = False
    made: bool = False
    begun: bool = False
    deleted: bool = False

    @classmethod
    def of(cls, where: Site) -> ClusterSite:
        """Read it from the run's site; what cannot be read has its default."""
        known: dict[str, Any] = dict(cls._field_defaults)
        for key, default in known.items():
            value = where.own.get(key)
            known[key] = value if type(value) is type(default) else default
        return cls(**known)

    def into(self, where: Site) -> Site:
        """Return the run's site with it."""
        own: dict[str, Json] = {**where.own, **self._asdict()}
        return where._replace(own={key: value for key, value in own.items() if value})
