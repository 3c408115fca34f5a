"""Ways to start processes on hosts: here (`base.py`) and elsewhere (`openssh.py`).

A connection starts a process on its host and hands over its three streams; nothing else.
"""
