"""Cells of a notebook on ranks that stay: `%load_ext shanty`, then `%%ranks -n 4`.

The ranks are a run like any other, whose program (`shanty.tasks.cells`) takes cells in place of a
script. It works in IPython at a terminal and in Jupyter.
"""
