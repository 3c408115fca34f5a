"""Finds the networks that connect the hosts of a run, their speed, and the network for the run.

`topology` has the types, `measure` tries and times, `diagnosis` explains, `selection` chooses (or
takes what the cache has), `user_settings` are the settings of the user.
"""
