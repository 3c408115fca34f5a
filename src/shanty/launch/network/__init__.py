"""Finds the networks that join the hosts of a run, their speed, and the one that the run takes.

`topology` has the types, `measure` tries and times, `diagnosis` judges, `selection` chooses (or
takes what the cache has), `user_settings` are what a user has said himself.
"""
