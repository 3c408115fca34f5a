# ruff: noqa: PTH123, SIM115
"""Writes in all the ways that Python completes at its end, then fails, in rank 1.

Files are left open: that is what this is about. Arguments: how it ends, and "mpi" or "plain". The
files are in the current folder.
"""

import atexit
import bz2
import gzip
import io
import logging
import sys
import threading
import time
import weakref
import zipfile
from concurrent.futures import ThreadPoolExecutor

how, kind = sys.argv[1:]
if kind == "mpi":
    from mpi4py import MPI

    if MPI.COMM_WORLD.rank != 1:
        MPI.COMM_WORLD.barrier()


def put(name):
    with open(name, "a") as file:
        file.write(f"{name}\n")


def late(name):
    time.sleep(0.5)
    put(name)


class Thing:
    pass


def work():
    text = open("in-a-frame", "w")
    text.write("text")
    packed = gzip.open("text.gz", "wt")
    packed.write("text" * 1000)
    if how == "raise":
        raise ValueError("a bad batch")
    sys.exit(3 if how == "exit" else "no more batches")


text = open("text", "w")
text.write("text")
both = open("both", "w+b")
both.write(b"both")
wrapped = io.TextIOWrapper(io.BufferedWriter(io.FileIO("wrapped", "w")))
wrapped.write("wrapped")
packed = bz2.open("text.bz2", "wb")
packed.write(b"text" * 1000)
archive = zipfile.ZipFile("archive.zip", "w")
archive.writestr("member", "text" * 100)
logging.basicConfig(filename="log", level=logging.INFO, format="%(message)s")
logging.info("logged")
atexit.register(put, "handler")
thing = Thing()
weakref.finalize(thing, put, "finalizer")
threading.Thread(target=late, args=("thread",)).start()
pool = ThreadPoolExecutor(1)
for each in range(2):
    pool.submit(late, f"pool-{each}")
work()
