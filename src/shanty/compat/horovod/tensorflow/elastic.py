"""`horovod.tensorflow.elastic`: training that goes back to its last commit."""

from shanty.tensorflow.elastic import HorovodInternalError as HorovodInternalError
from shanty.tensorflow.elastic import TensorFlowKerasState as TensorFlowKerasState
from shanty.tensorflow.elastic import TensorFlowState as TensorFlowState
from shanty.tensorflow.elastic import run as run
