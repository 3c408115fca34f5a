"""Containers: a way to start a command on a host so that it finds an image's files around it.

`container.py` is what a run knows of its container on a host, `engines.py` the command lines of
docker, podman and apptainer, `words.py` what these say when something fails.
"""
