"""Makes a cluster in this machine: hosts in Linux namespaces, each with a network and an sshd.

`control` is what the command line calls; the lab's own process is `supervisor`, and `machine`
makes a process a host.
"""
