"""Finds the networks that join the hosts of a run, their speed, and the one that the run takes."""
