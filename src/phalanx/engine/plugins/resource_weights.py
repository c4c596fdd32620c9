"""Read the `resources` argument of the resource plugins: the scored resources and their weights."""

from __future__ import annotations

from typing import Any

from phalanx.base.errors import ConfigProblem

MANY_SHAPES = 4096  # cached shapes, with their requests of these resources


def resource_weights(value: Any, path: str) -> list[tuple[str, int]]:
    """Return [(name, weight)]; cpu and memory with weight 1 by default."""
    if value is None:
        return [("cpu", 1), ("memory", 1)]
    if not isinstance(value, list):
        raise ConfigProblem(path, "must be a list")
    found: list[tuple[str, int]] = []
    for at, item in enumerate(value):
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            raise ConfigProblem(f"{path}[{at}].name", "required")
        weight = item.get("weight", 1) or 1
        if not isinstance(weight, int) or not 1 <= weight <= 100:
            raise ConfigProblem(f"{path}[{at}].weight", "must be between 1 and 100")
        if any(name == item["name"] for name, _ in found):
            raise ConfigProblem(f"{path}[{at}].name", f"{item['name']!r} is listed twice")
        found.append((item["name"], weight))
    return found
