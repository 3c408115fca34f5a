"""A host as its user names it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a run.

    `name` is what the user wrote, without user and slots, and what messages say; ssh resolves
    it (aliases of ~/.ssh/config count). `slots` None: as many as it has cores. `config` is an
    ssh configuration file of its own, "" for the user's. A pod has the place that it is in:
    `pod` is "CONTEXT/NAMESPACE" then.
    """

    name: str
    user: str | None = None
    port: int | None = None
    slots: int | None = None
    config: str = ""
    pod: str = ""

    @property
    def login(self) -> str:
        """What ssh is given: NAME or USER@NAME."""
        return f"{self.user}@{self.name}" if self.user else self.name
