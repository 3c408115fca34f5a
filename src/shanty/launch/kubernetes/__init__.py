"""A Kubernetes cluster seen from here: its API, exec into pods, a run's objects and pods.

What it says of them is put in words and numbers; who acts on it is in `targets`.
"""
