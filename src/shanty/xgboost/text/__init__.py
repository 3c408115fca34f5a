"""Reads text data, of which each rank has only its byte share, in bounded memory.

    for rows in read_libsvm(["a.libsvm", "b.libsvm.gz"], rank, ranks):
        ...

The files, end to end, are N bytes in a row; rank r of n has the bytes [r · N / n, (r + 1) · N / n)
and the lines that begin there. Nothing here knows MPI or XGBoost: who speaks to the other ranks
passes `sizes`, `skip` and `extra` in.
"""

from shanty.xgboost.text.csv import read_csv
from shanty.xgboost.text.files import sizes
from shanty.xgboost.text.libsvm import read_libsvm
from shanty.xgboost.text.rows import ENTRY, FormatError, Rows
from shanty.xgboost.text.sides import Groups, count_rows, groups_of_share, numbers

__all__ = [
    "ENTRY",
    "FormatError",
    "Groups",
    "Rows",
    "count_rows",
    "groups_of_share",
    "numbers",
    "read_csv",
    "read_libsvm",
    "sizes",
]
