"""Finds out why a run fails, stands still or is slow, and what its ranks do."""
