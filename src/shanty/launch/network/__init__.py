"""Which networks join the hosts of a run, how fast they are, and which one the run takes.

`measure` asks the hosts, `choose` decides and is pure, `cache` remembers.
"""
