"""PrioritySort: order the queue by priority, then by time of the request; a failed attempt keeps its position."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.engine.framework import Handle


class PrioritySort:
    name = "PrioritySort"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        pass

    def sort_key(self, priority: int, asked: float, order: int) -> tuple[Any, ...]:
        return (-priority, asked, order)
