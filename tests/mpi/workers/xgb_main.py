"""Runs examples/xgboost/main.py unchanged, then keeps what each rank has seen.

Its path comes first, then its words. The model goes to the artifacts, and so does rank-K.json of
each rank: the rows of its shares as LibSVM text, and a hash of its model.
"""

import hashlib
import json
import runpy
import sys

import shanty


def text(matrix):
    rows, labels = matrix.get_data(), matrix.get_label()
    lines = []
    for row, label in enumerate(labels):
        part = slice(rows.indptr[row], rows.indptr[row + 1])
        pairs = zip(rows.indices[part].tolist(), rows.data[part].tolist(), strict=True)
        lines.append(" ".join([str(label), *(f"{column}:{value}" for column, value in pairs)]))
    return "\n".join(lines)


folder = shanty.artifacts()
sys.argv += ["--model_dir", str(folder)]
train, test, booster = runpy.run_path(sys.argv.pop(1))["main"]()
model = hashlib.sha256(booster.save_raw()).hexdigest()
seen = {"train": text(train), "test": text(test), "model": model}
(folder / f"rank-{shanty.rank()}.json").write_text(json.dumps(seen))
