"""How this machine reaches a host: connections, keys, RPC clients, work on hosts side by side.

A connection only starts a process on its host and returns its three streams.
"""
