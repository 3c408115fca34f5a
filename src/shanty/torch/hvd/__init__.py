"""Horovod's API on torch: `api` has all of its names. The engine is `shanty.collectives`.

`ops` are the operations, `optimizer` and `gradients` the training, `functions` what is sent once.
"""
