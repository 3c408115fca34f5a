"""Reads LibSVM line by line, for blocks with rare or wrong text."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from shanty.xgboost.text.rows import Malformed, Rows, entries_of

_NUMBER = re.compile(
    rb"[+-]?(?:[0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?|\.[0-9]+(?:e[+-]?[0-9]+)?|nan|inf|infinity)",
    re.IGNORECASE,
)
LARGEST_INDEX = 2**31 - 1
_LARGEST_QID = 2**64 - 1
_SHOWN = 40  # characters of a token in a message


class Kind(NamedTuple):
    """The values that each row of some data has beside its label."""

    weights: bool
    qids: bool


def number(token: bytes) -> float | None:
    """The number that a token spells; None for any other token."""
    return float(token) if _NUMBER.fullmatch(token) else None


def rows_by_line(text: bytes, indexing_mode: int, kind: Kind | None) -> Rows | None:
    """The rows of some whole lines; None for lines without rows.

    Raises Malformed for the first line that is not a row, or not of the kind. Without a kind, the
    first row sets it.
    """
    data: list[float] = []
    indices: list[int] = []
    indptr = [0]
    labels: list[float] = []
    weights: list[float] = []
    qids: list[int] = []
    start = 0
    for line in re.split(rb"[\n\r]", text):
        tokens = line.partition(b"#")[0].replace(b"\t", b" ").split(b" ")
        words = [token for token in tokens if token]
        if words:
            try:
                label, weight, qid = _head(words)
                kind = kind or Kind(weight is not None, qid is not None)
                _same_kind(kind, weight, qid)
                for word in words[1 if qid is None else 2 :]:
                    index, value = _entry(word, indexing_mode)
                    indices.append(index)
                    data.append(value)
            except ValueError as error:
                raise Malformed(start, str(error)) from None
            indptr.append(len(data))
            labels.append(label)
            weights += [] if weight is None else [weight]
            qids += [] if qid is None else [qid]
        start += len(line) + 1
    if not labels:
        return None
    with np.errstate(over="ignore"):
        return Rows(
            entries_of(np.array(indices, np.int32), np.array(data, np.float64)),
            np.array(indptr, np.int64),
            np.array(labels, np.float64).astype(np.float32),
            np.array(weights, np.float64).astype(np.float32) if weights else None,
            np.array(qids, np.uint64) if qids else None,
        )


def _head(words: list[bytes]) -> tuple[float, float | None, int | None]:
    """Label, weight and qid at a line's beginning."""
    first, colon, second = words[0].partition(b":")
    label = number(first)
    weight = number(second) if colon else None
    if label is None or (colon and weight is None):
        raise ValueError(
            f"it begins with {shown(words[0])}, which is not a label (a number) or label:weight; "
            "correct the line, or begin it with '#' if it is a comment"
        )
    qid = None
    if len(words) > 1 and words[1].startswith(b"qid:"):
        digits = words[1][4:]
        if not digits.isdigit() or int(digits) > _LARGEST_QID:
            raise ValueError(
                f"{shown(words[1])} is not a query id: write qid: and a whole number, 0 or more"
            )
        qid = int(digits)
    return label, weight, qid


def _same_kind(kind: Kind, weight: float | None, qid: int | None) -> None:
    for has, had, what in (
        (weight is not None, kind.weights, "weight (label:weight)"),
        (qid is not None, kind.qids, "qid"),
    ):
        if has and not had:
            raise ValueError(
                f"it has a {what}, and rows before it have none: give it to all or none"
            )
        if had and not has:
            raise ValueError(
                f"it has no {what}, and rows before it have one: give it to all or none"
            )


def _entry(word: bytes, indexing_mode: int) -> tuple[int, float]:
    """Index (from 0) and value of one index:value; an index alone has the value 1."""
    name, colon, rest = word.partition(b":")
    value = number(rest) if colon else 1.0
    if word.startswith(b"qid:"):
        raise ValueError(f"{shown(word)} must follow the label: put it in the second place")
    if not name.isdigit() or value is None:
        raise ValueError(
            f"{shown(word)} is not index:value (a whole number, a colon and a number, without "
            "blanks between); correct the line"
        )
    index = int(name) - indexing_mode
    if index < 0:
        raise ValueError(
            f"{shown(word)} has the index 0, but with indexing_mode=1 indices begin with 1: leave "
            "indexing_mode out"
        )
    if index > LARGEST_INDEX:
        raise ValueError(f"{shown(word)} has an index above {LARGEST_INDEX}, the largest possible")
    return index, value


def shown(token: bytes) -> str:
    """A token as a message quotes it."""
    text = token.decode(errors="backslashreplace")
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "…")
