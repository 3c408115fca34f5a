"""What of a run on Kubernetes is in its pods: the first process of each, and the lead pod's calls.

`pod` is the first process; `dial` starts a command in another pod of the run.
"""
