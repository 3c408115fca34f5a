"""`horovod.runner.util`: the helpers that programs around Horovod use."""
