"""The dashboard: a server of pages and of an HTTP API over the run directories and their index.

`app` puts it together, one module a group of addresses; `serving` runs it; `users` says who may.
It keeps no state of its own: what it shows is read from files, what it starts is `shanty run`.
"""
