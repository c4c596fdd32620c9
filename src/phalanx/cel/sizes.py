"""Maximum sizes of values, for cost estimates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phalanx.base.well_known import EMBEDDED_RESOURCE, INT_OR_STRING

from .schemas import HEAD, escaped

REQUEST_BYTES = 3 * 1024 * 1024  # the largest request; an upper bound for all parts of an object
_NUMBER_BYTES, _BOOL_BYTES, _TEXT_BYTES, _EMPTY_BYTES = 1, 4, 2, 2  # of the shortest JSON
_FORMATS = {"duration": (32, 3), "date": (12, 12), "date-time": (32, 21)}  # (longest, shortest) JSON


@dataclass(slots=True)
class Sized:
    """Maximum size of a value and its parts; numbers and booleans have size 0, as upstream counts them.

    `min_bytes` is the length of its shortest JSON.
    """

    most: int = 0
    element: Sized | None = None
    key: Sized | None = None
    fields: dict[str, Sized] = field(default_factory=dict)
    min_bytes: int = 0
    by_name: bool = False  # entries are also reached by `map.name`

    def at(self, path: list[str]) -> Sized | None:
        """Return the size of a part by its path: names, `@items`, `@values`, `@keys`."""
        here: Sized | None = self
        for name in path:
            if here is None:
                return None
            if name in ("@items", "@values"):
                here = here.element
            elif name == "@keys":
                here = here.key
            elif name == "@indices":
                return None
            else:
                here = here.fields.get(name) or (here.element if here.by_name else None)
        return here

    @property
    def cardinality(self) -> int:
        """Return how many such values one request can contain."""
        return REQUEST_BYTES // (self.min_bytes + 1)


def size_of_schema(schema: Any, root: bool = False) -> Sized | None:
    """Return the sizes that a schema allows; None if rules cannot read inside."""
    if not isinstance(schema, Mapping):
        return None
    if schema.get(INT_OR_STRING):
        limit = schema.get("maxLength")
        return Sized(max(int(limit), 0) * 4 if limit is not None else REQUEST_BYTES - 2, min_bytes=1)
    kind = schema.get("type")
    if kind == "array":
        return _list(schema)
    if kind == "object":
        return _object(schema, root)
    if kind == "string":
        return _text(schema)
    if kind == "boolean":
        return Sized(min_bytes=_BOOL_BYTES)
    return Sized(min_bytes=_NUMBER_BYTES) if kind in ("integer", "number") else None


def _list(schema: Mapping[str, Any]) -> Sized | None:
    items = schema.get("items")
    element = size_of_schema(items, bool(isinstance(items, Mapping) and items.get(EMBEDDED_RESOURCE)))
    if element is None:
        return None
    limit = schema.get("maxItems")
    most = max(int(limit), 0) if limit is not None else (REQUEST_BYTES - 2) // (element.min_bytes + 1)
    return Sized(most, element, min_bytes=_EMPTY_BYTES)


def _object(schema: Mapping[str, Any], root: bool) -> Sized | None:
    extra = schema.get("additionalProperties")
    if isinstance(extra, Mapping):
        value = size_of_schema(extra, bool(extra.get(EMBEDDED_RESOURCE)))
        if value is None:
            return None
        limit = schema.get("maxProperties")
        most = max(int(limit), 0) if limit is not None else (REQUEST_BYTES - 2) // (value.min_bytes + 6)
        return Sized(most, value, Sized(min_bytes=_TEXT_BYTES), min_bytes=_EMPTY_BYTES)
    found = Sized(min_bytes=_EMPTY_BYTES)
    properties = {**(schema.get("properties") or {}), **(HEAD if root or schema.get(EMBEDDED_RESOURCE) else {})}
    needed = schema.get("required") or ()
    for name, part in properties.items():
        size = size_of_schema(part, bool(isinstance(part, Mapping) and part.get(EMBEDDED_RESOURCE)))
        if size is None:
            continue
        short = escaped(name)
        if short:
            found.fields[short] = size
        if name in needed and part.get("default") is None:
            found.min_bytes += len(name) + size.min_bytes + 4
    return found


def _text(schema: Mapping[str, Any]) -> Sized:
    form, limit = schema.get("format") or "", schema.get("maxLength")
    if form in _FORMATS:
        longest, shortest = _FORMATS[form]
        return Sized(longest, min_bytes=shortest)
    if limit is not None:
        return Sized(max(int(limit), 0) * (1 if form == "byte" else 4), min_bytes=_TEXT_BYTES)
    choices = [len(c) for c in schema.get("enum") or () if isinstance(c, str)]
    return Sized(max(choices) if choices and form != "byte" else REQUEST_BYTES - 2, min_bytes=_TEXT_BYTES)
