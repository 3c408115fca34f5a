"""Named tuples whose classes are made quickly.

`typing.NamedTuple` compiles methods for each class, which takes 0.1 to 0.3 ms. The ranks of a run
wait for the agents to load, and the agents have dozens of such classes. For a type checker,
`Record` is `NamedTuple`.
"""

from __future__ import annotations

__all__ = ["Record"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NamedTuple as Record
else:
    from operator import itemgetter

    class Record(tuple):
        """A tuple with the annotated fields of the subclass, in their order."""

        __slots__ = ()

        def __init_subclass__(cls):
            cls._fields = tuple(getattr(cls, "__annotations__", ()))
            cls._defaults = {name: vars(cls)[name] for name in cls._fields if name in vars(cls)}
            for place, name in enumerate(cls._fields):
                setattr(cls, name, property(itemgetter(place)))

        def __new__(cls, *values, **named):
            """Make one of values, in order or by name; TypeError unless each field has one."""
            if named or len(values) != len(cls._fields):
                given = dict(zip(cls._fields, values))
                known = {**cls._defaults, **given, **named}
                unfit = len(given) != len(values) or given.keys() & named.keys()
                if unfit or known.keys() != set(cls._fields):
                    raise TypeError(f"{cls.__name__} has the fields {', '.join(cls._fields)}")
                values = [known[name] for name in cls._fields]
            return tuple.__new__(cls, values)

        def __getnewargs__(self):
            return tuple(self)

        def __repr__(self):
            fields = ", ".join(f"{name}={value!r}" for name, value in self._asdict().items())
            return f"{type(self).__name__}({fields})"

        def _asdict(self):
            return dict(zip(self._fields, self))

        def _replace(self, **changes):
            return type(self)(**{**self._asdict(), **changes})
