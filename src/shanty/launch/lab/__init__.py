"""Makes a cluster in this machine: hosts in Linux namespaces, each with a network and an sshd."""
