"""Makes a cluster in this machine: hosts in Linux namespaces, each with its own network and sshd.

`shanty lab up 3` makes it, `--on lab` runs there. No root is needed.
"""
