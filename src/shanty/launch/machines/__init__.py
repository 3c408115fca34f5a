"""Machine types: names for hosts of one kind, for a partition, or for nodes of a cluster.

The runs that are on say which machines are taken; `allotment` gives the free machines to the runs
that wait. The process that does so again and again is in `launch/scheduler`.
"""
