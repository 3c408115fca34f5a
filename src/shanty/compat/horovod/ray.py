"""`horovod.ray` is not here: importing it raises an error that says what to use instead."""

from shanty.compat.absent import absent

raise absent("horovod.ray", "`shanty run --on HOSTS` starts ranks on several hosts.")
