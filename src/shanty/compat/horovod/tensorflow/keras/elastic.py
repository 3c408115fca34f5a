"""`horovod.tensorflow.keras.elastic`: training that goes back to its last commit."""

from shanty.tensorflow.keras.elastic import *  # noqa: F403
from shanty.tensorflow.keras.elastic import HorovodInternalError as HorovodInternalError
from shanty.tensorflow.keras.elastic import __all__ as __all__
