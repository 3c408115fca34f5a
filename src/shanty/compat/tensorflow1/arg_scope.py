"""`tf.contrib.framework.arg_scope`: arguments that functions get within a scope."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

Function = Callable[..., Any]
Scope = dict[Function, dict[str, Any]]
_scopes: list[Scope] = [{}]  # the last is the current one


def add_arg_scope(func: Function) -> Function:
    """Return `func` so that scopes may give it arguments; arguments of a call take precedence."""

    @functools.wraps(func)
    def with_scope(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **{**_scopes[-1].get(with_scope, {}), **kwargs})

    vars(with_scope)["_takes_scope"] = True
    return with_scope


@contextmanager
def arg_scope(list_ops_or_scope: Sequence[Function] | Scope, **kwargs: Any) -> Iterator[Scope]:
    """Give arguments to functions within a `with` block; the scope can be used again.

    Takes the functions and their arguments, or a scope alone. ValueError for a function without
    `add_arg_scope`.
    """
    if isinstance(list_ops_or_scope, Mapping):
        if kwargs:
            raise ValueError("arg_scope takes a scope or arguments, not both")
        scope = dict(list_ops_or_scope)
    else:
        scope = dict(_scopes[-1])
        for func in list_ops_or_scope:
            if not getattr(func, "_takes_scope", False):
                name = getattr(func, "__name__", func)
                raise ValueError(f"{name} takes no arguments from an arg_scope")
            scope[func] = {**scope.get(func, {}), **kwargs}
    _scopes.append(scope)
    try:
        yield scope
    finally:
        _scopes.pop()
