"""Function calls: the overload is resolved at compile time, or at run time by the kinds of the arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .declarations import Overload, smaller_of_two
from .types import Type
from .values import CostLimitExceeded, EvaluationError, equal, kind_of


class EvaluationFrame:
    """One evaluation: variables, loop variables by slot, and the cost so far."""

    __slots__ = ("cost", "limit", "slots", "variables")

    def __init__(self, variables: Mapping[str, Any], slots: int, limit: int) -> None:
        self.variables = variables
        self.slots: list[Any] = [None] * slots
        self.cost = 0
        self.limit = limit


Run = Callable[[EvaluationFrame], Any]
_ALWAYS = frozenset({"dyn", "param", "error"})
_MAPS = frozenset({"map", "object"})


def _accepts(wanted: Type, kind: str) -> bool:
    if wanted.kind in _ALWAYS:
        return True
    if wanted.kind == "opaque":
        return kind == wanted.name
    if wanted.kind in _MAPS:
        return kind in _MAPS
    return kind == wanted.kind


def _matching(overloads: tuple[Overload, ...], values: tuple[Any, ...]) -> Overload | None:
    kinds = [kind_of(v) for v in values]
    for overload in overloads:
        if all(map(_accepts, overload.params, kinds)):
            return overload
    return None


def call_closure(name: str, overloads: tuple[Overload, ...], args: list[Run], static: bool) -> Run:
    """Return the closure of a call. With `static`, all types are known and the only overload is called directly."""
    if static and len(overloads) == 1:
        return _known(overloads[0], args)

    def run(frame: EvaluationFrame) -> Any:
        values = tuple([arg(frame) for arg in args])
        overload = _matching(overloads, values)
        if overload is None:
            raise EvaluationError(f"no such overload: {name}")
        value = overload.run(*values)
        frame.cost += 1 if overload.cost is None else overload.cost(values, value)
        if frame.cost > frame.limit:
            raise CostLimitExceeded
        return value

    return run


def _known(overload: Overload, args: list[Run]) -> Run:
    implementation, cost = overload.run, overload.cost

    def run(frame: EvaluationFrame) -> Any:
        values = tuple([arg(frame) for arg in args])
        value = implementation(*values)
        frame.cost += 1 if cost is None else cost(values, value)
        if frame.cost > frame.limit:
            raise CostLimitExceeded
        return value

    def two(frame: EvaluationFrame) -> Any:
        value = implementation(left(frame), right(frame))
        frame.cost += 1
        if frame.cost > frame.limit:
            raise CostLimitExceeded
        return value

    if len(args) != 2 or cost is not None:
        return run
    left, right = args
    return two


def equality_closure(left: Run, right: Run, negate: bool) -> Run:
    """Return the closure of == or !=, which accept values of any kind."""

    def run(frame: EvaluationFrame) -> bool:
        a, b = left(frame), right(frame)
        kind = type(a)
        if kind is str and type(b) is str:
            frame.cost += (min(len(a), len(b)) + 9) // 10
            return (a == b) is not negate
        if kind is int and type(b) is int:
            frame.cost += 1
            return (a == b) is not negate
        frame.cost += smaller_of_two((a, b), None)
        return equal(a, b) is not negate

    return run
