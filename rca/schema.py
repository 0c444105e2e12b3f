"""The JSON Schema of a rule file, for editors: as the file is written, not as the program holds it."""

from collections.abc import Mapping
from typing import cast

import msgspec

from rca.library import Rule

Schema = Mapping[str, object]
_GIVEN = ("id", "layer")
"""What follows from the name of the file and must not be written."""


def schema() -> Schema:
    """Return the schema (draft 2020-12) of one rule file.

    >>> schema()["required"]
    ['summary', 'entity', 'role', 'when']
    """
    parts = {name: _as_written(part) for name, part in msgspec.json.schema(Rule)["$defs"].items()}
    rule = cast("Schema", parts.pop("Rule"))
    properties = cast("Schema", rule["properties"])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A rule: when something is wrong on an entity, and what that brings about elsewhere",
        "description": rule["description"],
        "type": "object",
        "properties": {key: part for key, part in properties.items() if key not in _GIVEN},
        "required": [key for key in cast("list[str]", rule["required"]) if key not in _GIVEN],
        "additionalProperties": False,
        "$defs": parts,
    }


def _as_written(part: object) -> object:
    """Rewrite a part of the schema: `{is: any, of: [...]}` is written `{any: [...]}`, and unions need no discriminator.

    >>> _as_written({"properties": {"is": {"enum": ["not"]}, "of": {}}, "required": ["is", "of"], "title": "Not"})
    {'properties': {'not': {}}, 'required': ['not'], 'title': 'Not'}
    """
    if isinstance(part, list):
        return [_as_written(item) for item in part]
    if not isinstance(part, dict):
        return part
    part = {key: _as_written(item) for key, item in part.items() if key != "discriminator"}
    properties = part.get("properties")
    if isinstance(properties, dict) and set(properties) == {"is", "of"}:
        tag = properties["is"]["enum"][0]
        part |= {"properties": {tag: properties["of"]}, "required": [tag]}
    return part
