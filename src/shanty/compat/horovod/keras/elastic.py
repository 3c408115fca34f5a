"""`horovod.keras.elastic`: training that goes back to its last commit."""

from shanty.keras.elastic import *  # noqa: F403
from shanty.keras.elastic import HorovodInternalError as HorovodInternalError
from shanty.keras.elastic import __all__ as __all__
