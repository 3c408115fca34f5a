"""Functions on ranks: the task, what travels of a call, and what comes back.

It goes to every host with what a script imports. Starting runs is `shanty.sdk`, which stays here.
"""
