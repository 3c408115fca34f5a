"""Weights & Biases: files in the run's artifacts that `wandb sync` sends, or its server at once.

WANDB_MODE says which; without it, the server where the user is logged in. The ranks' runs are one
group. A run that the script itself has begun is left alone.
"""

from __future__ import annotations

import netrc
import os
from urllib.parse import urlsplit

from shanty._sinks import Place, Record

_SERVER = "https://api.wandb.ai"


class Sink:
    """A run of wandb's."""

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
        # wandb's own steps may only grow; these may be of several loops.
        self._run.define_metric("*", step_metric="step")

    def write(self, record: Record) -> None:
        """Add all values."""
        self._run.log({**record.numbers, **record.texts, "step": record.step})

    def close(self, *, failed: bool) -> None:
        """Say how the script ended."""
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
