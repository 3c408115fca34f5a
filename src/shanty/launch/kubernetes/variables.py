"""Variables of containers: references as Kubernetes expands them, and values that only it knows.

Pure. `$(NAME)` in a value is a variable that is defined before it, in `command` and `args` any
variable of the container; `$$` is a $, and a reference to nothing stays as it is.
https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from shanty.runtime.errors import UsageError

_REFERENCE = re.compile(r"\$\$|\$\(([^)]*)\)")
_OF_SERVICES = re.compile(r"[A-Z0-9_]+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\w+)?)")
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def expanded(text: str, value_of: Callable[[str], str | None], *, again: bool = False) -> str:
    """The text with the references to variables whose values are known.

    again: Kubernetes will expand the result once more, so that each other $ is doubled.
    """

    def put_in(found: re.Match[str]) -> str:
        if found[1] is None:
            return "$$" if again else "$"
        value = value_of(found[1])
        if value is None:
            return found[0]
        return value.replace("$", "$$") if again else value

    return _REFERENCE.sub(put_in, text)


@dataclass
class Variables:
    """The variables of a container, in the order of its manifest.

    `plain` have values that are known here, `kept` are entries of `env` that only the cluster can
    give a value, `lacking` says of each of these what it takes. `given` come from elsewhere, and
    win over those of the same names; `usual` give values to what is left to the cluster.
    """

    given: Mapping[str, str] = field(default_factory=dict)
    usual: Mapping[str, str] = field(default_factory=dict)
    plain: dict[str, str] = field(default_factory=dict)
    kept: dict[str, Any] = field(default_factory=dict)
    lacking: dict[str, str] = field(default_factory=dict)
    open: bool = False  # `envFrom` may have variables of any name

    @classmethod
    def of(
        cls, container: Mapping[str, Any], path: str, given: Mapping[str, str],
        usual: Mapping[str, str],
    ) -> Variables:  # fmt: skip
        """Read those of a container; UsageError for what cannot be set."""
        found = cls(given, usual, open=bool(container.get("envFrom")))
        for number, one in enumerate(container.get("env") or ()):
            name, value = one.get("name") or "", one.get("value") or ""
            if not name or "=" in name or "\0" in name + value:
                raise UsageError(f"{path}.env[{number}] cannot be set: its name is {name!r}")
            if value and one.get("valueFrom"):
                raise UsageError(f"{path}.env[{number}] has both value and valueFrom")
            if name in found.kept and name in found.awaited([value]):
                raise UsageError(f"{path}.env[{number}] refers to an earlier {name}: rename one")
            found._add(name, value, one)
        return found

    def _add(self, name: str, value: str, entry: Mapping[str, Any]) -> None:
        plain = kept = None
        lacking = ""
        if entry.get("valueFrom"):
            plain = self.usual.get(name)
            kept, lacking = dict(entry), source_of(entry["valueFrom"])
        elif awaited := self.awaited([value]):
            kept = {"name": name, "value": expanded(value, self.value_of, again=True)}
            lacking = f"it refers to {', '.join(awaited)}"
        else:
            plain = expanded(value, self.value_of)
        for known in (self.plain, self.kept, self.lacking):
            known.pop(name, None)  # the last of a name counts
        if plain is not None:
            self.plain[name] = plain
        else:
            self.kept[name], self.lacking[name] = kept, lacking

    def value_of(self, name: str) -> str | None:
        """The value of a variable; None where it is not known."""
        return self.given.get(name, self.plain.get(name))

    def awaited(self, texts: Collection[str]) -> list[str]:
        """The names in references for which only the cluster may have values."""
        names = [found[1] for text in texts for found in _REFERENCE.finditer(text)]
        return [name for name in dict.fromkeys(names) if name and self._may_come(name)]

    def _may_come(self, name: str) -> bool:
        if self.value_of(name) is not None:
            return False
        return name in self.kept or self.open or bool(_OF_SERVICES.fullmatch(name))

    def in_words(self, words: Collection[str]) -> list[str]:
        """Words with the values of variables that are known."""
        return [self._final(word) for word in words]

    def in_shell(self, words: Collection[str]) -> str:
        """A line for a shell, in which variables that the cluster has are those of the shell."""
        return " ".join(map(self._quoted, words))

    def _quoted(self, word: str) -> str:
        line, at = "", 0
        for found in _REFERENCE.finditer(word):
            name = found[1] or ""
            if self._may_come(name) and IDENTIFIER.fullmatch(name):
                line += self._literal(word[at : found.start()]) + f'"${{{name}}}"'
                at = found.end()
        return line + (self._literal(word[at:]) if line else shlex.quote(self._final(word)))

    def _literal(self, text: str) -> str:
        return shlex.quote(self._final(text)) if text else ""

    def _final(self, text: str) -> str:
        return expanded(text, self.value_of)


def source_of(origin: Mapping[str, Any]) -> str:
    """Where a value of `valueFrom` comes from."""
    for key, title in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
        if origin.get(key):
            its = origin[key]
            return f"its value is {its.get('key', 'a key')} of the {title} {its.get('name', '')}"
    for key in ("fieldRef", "resourceFieldRef"):
        if origin.get(key):
            its = origin[key]
            return f"its value is {its.get('fieldPath') or its.get('resource')} of the pod"
    return "its value is the cluster's (valueFrom)"
