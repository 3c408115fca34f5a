"""What is done on a host before and after a run, by a server that the command line starts there.

`server.py` serves requests over its standard streams; every other module holds some of them.
Standard library only, Python 3.9.
"""
