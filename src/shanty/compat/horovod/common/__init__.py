"""The common part of Horovod's frameworks."""
