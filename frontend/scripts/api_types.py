"""Prints src/api.ts: what the HTTP API takes and answers, as shanty.dashboard.models has it."""

from __future__ import annotations

import json
from typing import Any

from pydantic.json_schema import models_json_schema

from shanty.dashboard import models

_HEAD = """/* Made by scripts/api_types.py from shanty.dashboard.models: do not edit.
 *
 * What the HTTP API answers (prefix /api/v1). Times are seconds since 1970, sizes bytes. */
"""
_PLAIN = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean"}


def text() -> str:
    """All models as interfaces, in the order of their names."""
    kinds = (*models.Model.__subclasses__(), *models.Given.__subclasses__(), models.Detail)
    _, found = models_json_schema([(kind, "serialization") for kind in kinds])
    parts = [_HEAD]
    for name, schema in sorted(found["$defs"].items()):
        fields = (f"  {key}: {typed(each)};\n" for key, each in schema["properties"].items())
        parts.append(f"export interface {name} {{\n{''.join(fields)}}}\n")
    return "\n".join(parts)


def typed(schema: dict[str, Any]) -> str:
    """The type of a value with this schema."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(json.dumps(word) for word in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(typed(each) for each in schema["anyOf"])
    kind = schema.get("type")
    if kind == "array" and "prefixItems" in schema:
        return f"[{', '.join(typed(each) for each in schema['prefixItems'])}]"
    if kind == "array":
        item = typed(schema["items"]) if schema["items"] else "unknown"
        return f"({item})[]" if " | " in item and item[0] != "[" else f"{item}[]"
    if kind == "object":
        patterns = schema.get("patternProperties", {})  # of the names: TypeScript has none
        values = [*patterns.values(), schema.get("additionalProperties")][0]
        return f"Record<string, {typed(values) if isinstance(values, dict) else 'unknown'}>"
    return "null" if kind == "null" else _PLAIN.get(str(kind), "unknown")


if __name__ == "__main__":
    print(text(), end="")
