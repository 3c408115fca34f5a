"""Reads text data, of which each rank has only its byte share, in bounded memory.

    for rows in libsvm.read_libsvm(["a.libsvm", "b.libsvm.gz"], rank, ranks):
        ...

The files, end to end, are N bytes in a row; rank r of n has the bytes [r · N / n, (r + 1) · N / n)
and the lines that begin there. Nothing here knows MPI or XGBoost: the caller, which communicates
with the other ranks, passes `sizes`, `skip` and `extra`.
"""
