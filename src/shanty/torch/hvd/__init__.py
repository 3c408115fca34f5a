"""Horovod's API on torch: `api` has all of its names. The engine is `shanty.collectives`."""
