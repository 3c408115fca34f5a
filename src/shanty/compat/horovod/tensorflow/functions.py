"""`horovod.tensorflow.functions`: what is sent once."""

from shanty.tensorflow.functions import allgather_object as allgather_object
from shanty.tensorflow.functions import broadcast_object as broadcast_object
from shanty.tensorflow.functions import broadcast_object_fn as broadcast_object_fn
from shanty.tensorflow.functions import broadcast_variables as broadcast_variables
