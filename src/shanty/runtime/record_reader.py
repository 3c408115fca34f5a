"""Reads the fields of a `Record` from JSON, by the texts of their annotations."""

from __future__ import annotations

from typing import Callable, Dict, List, Mapping, Sequence

Reader = Callable[[object], object]


class MisfitError(ValueError):
    """A value that is not of the type of its field."""


def misfit(value: object, wanted: str) -> MisfitError:
    """Return the error about a value that is not what was `wanted`."""
    return MisfitError(f"{value!r:.60} is not {wanted}")


def text(value: object) -> str:
    """Return the value, which has to be a text."""
    if not isinstance(value, str):
        raise misfit(value, "a text")
    return value


def whole(value: object) -> int:
    """Return the value, which has to be a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise misfit(value, "a whole number")
    return value


def json_object(value: object) -> Dict[str, object]:
    """Return the value, which has to be an object of JSON."""
    if not isinstance(value, dict):
        raise misfit(value, "an object")
    return value


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise misfit(value, "true or false")
    return value


def _number(value: object) -> float:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise misfit(value, "a number")
    return value


def _data(value: object) -> bytes:
    from binascii import a2b_base64  # not before the ranks start

    try:
        return a2b_base64(text(value))
    except ValueError:
        raise misfit(value, "in base64") from None


def _list(value: object) -> List[object]:
    if not isinstance(value, list):
        raise misfit(value, "a list")
    return value


_PLAIN: Dict[str, Reader] = {
    "str": text,
    "bool": _flag,
    "int": whole,
    "float": _number,
    "bytes": _data,
    "JsonObject": json_object,
}
_READERS: Dict[object, List[Reader]] = {}  # of the fields of a kind of record


def fields(kind: object, values: object, named: Mapping[str, Reader]) -> List[object]:
    """Return the fields of a record of that kind from a list; MisfitError where they do not fit.

    `named` reads the types that have a name of their own.
    """
    if kind not in _READERS:
        types = getattr(kind, "__annotations__", {}).values()
        _READERS[kind] = [reader(each, named) for each in types]
    return _each(values, _READERS[kind])


def reader(annotation: str, named: Mapping[str, Reader]) -> Reader:
    """Return what reads values of a type: `Optional[Tuple[str, int]]`, `Tuple[Link, ...]`, …"""
    known = named.get(annotation) or _PLAIN.get(annotation)
    if known is not None:
        return known
    outer, _, inner = annotation[:-1].partition("[")
    parts = [each if each == "..." else reader(each, named) for each in _split(inner)]
    first, last = parts[0], parts[-1]
    if outer == "Optional" and callable(first):
        return lambda value: None if value is None else first(value)
    if outer == "Dict" and callable(last):
        return lambda value: {name: last(each) for name, each in json_object(value).items()}
    if outer == "Tuple" and last == "..." and callable(first):
        return lambda value: tuple([first(each) for each in _list(value)])
    readers = [each for each in parts if callable(each)]
    if outer != "Tuple" or len(readers) != len(parts):
        raise TypeError(f"no reader for {annotation}")
    return lambda value: tuple(_each(value, readers))


def _split(inner: str) -> List[str]:
    """Return the arguments of a type, which are separated by commas outside of brackets."""
    found, depth = [""], 0
    for letter in inner:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            found.append("")
        else:
            found[-1] += letter
    return [each.strip() for each in found]


def _each(value: object, readers: Sequence[Reader]) -> List[object]:
    values = _list(value)
    if len(values) != len(readers):
        raise misfit(value, f"a list of {len(readers)}")
    return [read(each) for read, each in zip(readers, values)]
