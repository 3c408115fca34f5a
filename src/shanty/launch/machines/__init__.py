"""Machine types: names for hosts of one kind, for a partition, or for nodes of a cluster.

Which machines are taken is told by the runs that are on; `allotment` gives the free ones to those
that wait. What does it over and over is in `launch/scheduler`.
"""
