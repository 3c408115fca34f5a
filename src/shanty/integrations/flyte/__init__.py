"""Flyte's MPI tasks on ranks: workflows run locally, as flytekit runs them, their MPI under MPI.

Needs flytekit and flytekitplugins-kfmpi, which are imported when a workflow is run.
"""
