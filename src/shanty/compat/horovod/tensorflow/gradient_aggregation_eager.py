"""`horovod.tensorflow.gradient_aggregation_eager` is not here: importing it raises an error."""

from shanty.compat.absent import absent

raise absent(
    "horovod.tensorflow.gradient_aggregation_eager",
    "An optimizer adds gradients up by itself: backward_passes_per_step=.",
)
