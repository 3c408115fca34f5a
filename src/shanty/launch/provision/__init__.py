"""Prepares hosts for a run: `provision` brings what they lack, `node` describes them for agents.

A `session` is a connection to a host, or into a container there, which `inside` starts.
"""
