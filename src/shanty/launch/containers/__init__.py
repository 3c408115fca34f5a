"""Containers of a run: which engine and image its hosts take, and how images are made and sent.

`provision/containers.py` starts them on hosts. The command lines are in `runtime/containers`.
"""
