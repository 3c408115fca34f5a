"""How a task starts runs: `shanty` sets `load`, for a task also travels to hosts.

Nothing is imported here, so that `import shanty` stays light.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

load: Callable[[], ModuleType]
"""Loads `shanty.sdk.tasks`, where a task calls `submit` and the other names of `__all__`."""
