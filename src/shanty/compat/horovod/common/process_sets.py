"""Process sets: some of the ranks, with collectives of their own."""

from shanty.collectives.process_sets import *  # noqa: F403
from shanty.collectives.process_sets import __all__ as __all__
