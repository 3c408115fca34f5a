"""Containers: a way to start a command on a host so that it finds an image's files around it.

`container.py` describes the container of a run on a host, `engines.py` has the command lines of
docker, podman and apptainer, `engine_errors.py` explains their errors, `archive.py` reads and
writes archives of images, and `portable_python.py` copies a Python that runs in any image.
"""
