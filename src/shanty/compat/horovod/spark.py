"""`horovod.spark` is not here: importing it raises an error that says what to use instead."""

from shanty.compat.absent import absent

raise absent(
    "horovod.spark",
    "Write the data with Spark, and start the training with `shanty run` or horovod.run.",
)
