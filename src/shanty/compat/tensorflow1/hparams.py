"""`tf.contrib.training.HParams`: named values, which a text can change."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

# a name, perhaps an index, and a value, which may be a list in brackets
_PAIR = re.compile(
    r"\s*([A-Za-z]\w*)\s*(?:\[\s*(\d+)\s*\])?\s*=\s*(\[[^\]]*\]|[^,\[\]]*)\s*(?:,|$)"
)
_BOOLS = {"true": True, "1": True, "false": False, "0": False}


class HParams:
    """Hyperparameters: each is an attribute, and keeps the type that it began with."""

    def __init__(self, hparam_def: Any = None, model_structure: Any = None, **values: Any) -> None:
        if hparam_def is not None or model_structure is not None:
            raise ValueError("HParams takes names and values only")
        self._names: dict[str, None] = {}
        for name, value in values.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """Add one; ValueError where there is something of that name."""
        if getattr(self, name, None) is not None or name in self._names:
            raise ValueError(f"Hyperparameter name is reserved: {name}")
        if isinstance(value, (list, tuple)) and not value:
            raise ValueError(f"Multi-valued hyperparameters cannot be empty: {name}")
        self._names[name] = None
        setattr(self, name, list(value) if isinstance(value, tuple) else value)

    def del_hparam(self, name: str) -> None:
        """Remove one, if it is there."""
        if name in self._names:
            del self._names[name]
            delattr(self, name)

    def set_hparam(self, name: str, value: Any) -> None:
        """Change one; KeyError for a new name, ValueError for another type."""
        now = self._now(name)
        if isinstance(now, list) != isinstance(value, (list, tuple)):
            what = "a list" if isinstance(now, list) else "a single value"
            raise ValueError(f"hyperparameter {name} must be {what}, not {value!r}")
        if isinstance(now, list):
            setattr(self, name, [_as(now[0], each, name) for each in value])
        else:
            setattr(self, name, _as(now, value, name))

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> HParams:
        """Change the hyperparameters in a dictionary; returns itself."""
        for name, value in values_dict.items():
            self.set_hparam(name, value)
        return self

    def parse(self, values: str) -> HParams:
        """Change those in a text as "rate=0.1,sizes=[1,2],sizes[0]=3"; returns itself."""
        at = 0
        while at < len(values):
            found = _PAIR.match(values, at)
            if found is None:
                raise ValueError(f"Malformed hyperparameter value: {values[at:]}")
            self._set_text(found[1], found[2], found[3].strip())
            at = found.end()
        return self

    def parse_json(self, values_json: str) -> HParams:
        """Change the hyperparameters in a JSON object; returns itself."""
        return self.override_from_dict(json.loads(values_json))

    def to_json(self, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        """Return them as a JSON object."""
        return json.dumps(self.values(), indent=indent, separators=separators, sort_keys=sort_keys)

    def values(self) -> dict[str, Any]:
        """Return them by their names."""
        return {name: getattr(self, name) for name in self._names}

    def get(self, key: str, default: Any = None) -> Any:
        """Return one of them, or the default."""
        return getattr(self, key) if key in self._names else default

    def __contains__(self, key: object) -> bool:
        return key in self._names

    def __str__(self) -> str:
        return str(sorted(self.values().items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self})"

    def _now(self, name: str) -> Any:
        if name not in self._names:
            known = ", ".join(self._names)
            raise KeyError(f"unknown hyperparameter {name!r}; known: {known}")
        return getattr(self, name)

    def _set_text(self, name: str, index: str | None, text: str) -> None:
        now = self._now(name)
        listed = text.startswith("[")
        words = [word.strip() for word in text.strip("[]").split(",")] if listed else [text]
        if index is not None and isinstance(now, list) and not listed:
            now[int(index)] = _as(now[0], text, name)
        elif index is not None:
            raise ValueError(f"hyperparameter {name} has no place {index}")
        else:
            self.set_hparam(name, words if listed or isinstance(now, list) else text)


def _as(kind: Any, value: Any, name: str) -> Any:
    """Return `value` in the type of `kind`; ValueError where it is of another one."""
    if kind is None or type(value) is type(kind):
        return value
    text = str(value).strip()
    if isinstance(kind, bool) and text.lower() in _BOOLS:
        return _BOOLS[text.lower()]
    if type(kind) is int and not isinstance(value, (bool, float)):
        return int(text)
    if isinstance(kind, float) and not isinstance(value, bool):
        return float(text)
    raise ValueError(
        f"hyperparameter {name} is {type(kind).__name__}, and {value!r} cannot be converted to it"
    )
