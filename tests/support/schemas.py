"""Walking OpenAPI documents."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def references(value: Any) -> Iterator[str]:
    """Yield the names that $ref fields refer to."""
    if isinstance(value, dict):
        for name, inner in value.items():
            if name == "$ref" and isinstance(inner, str):
                yield inner.removeprefix("#/components/schemas/")
            else:
                yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)
