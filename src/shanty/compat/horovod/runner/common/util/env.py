"""`horovod.runner.common.util.env`: `get_env_rank_and_size`."""

from __future__ import annotations

import os


def get_env_rank_and_size() -> tuple[int, int]:
    """Return the rank and the number of ranks as the launcher says them; (0, 1) without one."""
    rank, size = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    return (0, 1) if rank is None or size is None else (int(rank), int(size))
