"""Weights & Biases: files in the run's artifacts that `wandb sync` sends, or its server at once.

WANDB_MODE chooses; the default is the server if the user is logged in. The runs of all ranks form
a group. A wandb run that the script itself has started is left alone.
"""

from __future__ import annotations

import netrc
import os
from urllib.parse import urlsplit

from shanty._sinks.record import Place, Record

_SERVER = "https://api.wandb.ai"


class Sink:
    """A run of wandb."""

    def __init__(self, place: Place) -> None:
        import wandb

        given = "WANDB_MODE" in os.environ or _logged_in()
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or "shanty",
            dir=str(place.folder.parent),  # wandb adds its own name
            group=place.run or None,
            name=place.title,
            mode=None if given else "offline",
            reinit="create_new",
            config={"shanty_run": place.run, "shanty_rank": place.rank},
            settings=wandb.Settings(console="off", silent=True),
        )
        # wandb's own steps must increase; these steps may come from several loops.
        self._run.define_metric("*", step_metric="step")

    def write(self, record: Record) -> None:
        """Add all values."""
        self._run.log({**record.numbers, **record.texts, "step": record.step})

    def close(self, *, failed: bool) -> None:
        """Record how the script ended."""
        self._run.finish(exit_code=int(failed))


def _logged_in() -> bool:
    """True where `wandb login` has left a key, or the environment has one."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL") or _SERVER).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
