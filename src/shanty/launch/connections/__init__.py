"""How a command gets to a host: `local.py` here, `openssh.py` elsewhere, behind `base.py`.

A connection starts a process on its host and hands over its three streams; nothing else.
"""
