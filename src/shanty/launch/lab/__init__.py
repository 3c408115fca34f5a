"""Makes a cluster in this machine: hosts in Linux namespaces, each with a network and an sshd.

The command line calls `control`, which starts the process of the lab, `supervisor`; `machine`
turns a process into a host.
"""
