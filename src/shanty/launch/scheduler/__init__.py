"""The process that serves the queue for machines.

It gives free machines to the runs that wait, in their order, and has each of them started by a
process of its own (`starter`). It ends when nothing waits any more.
"""
