"""The state of one evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


class EvaluationFrame:
    """One evaluation: variables, loop variables by slot, and the cost so far."""

    __slots__ = ("cost", "limit", "slots", "variables")

    def __init__(self, variables: Mapping[str, Any], slots: int, limit: int) -> None:
        self.variables = variables
        self.slots: list[Any] = [None] * slots
        self.cost = 0
        self.limit = limit


Run = Callable[[EvaluationFrame], Any]
