"""A Kubernetes cluster seen from here: its API, exec into pods, a run's objects and pods.

These modules read and explain what the cluster says; what acts on that is in `targets`.
"""
