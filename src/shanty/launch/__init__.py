"""This side of the wire: planning a run, starting it where it should run, watching it.

Nothing here is copied to a host (that is `shanty.runtime`) and nothing imports a training
framework. `targets` are the places a run can go to, `mpis` the MPIs of this machine.
"""
