"""Declarations of functions: overloads with their types, implementation and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

from .types import Type
from .values import Visits, size_of

Implementation = Callable[..., Any]
Cost = Callable[[tuple[Any, ...], Any], int]
"""(arguments, result) → cost units."""

STRING_FACTOR = 0.1  # cost units per code point of a string that is read once
REGEX_FACTOR = 0.25  # cost units per code point of a regular expression, per unit of the string


@dataclass(frozen=True, slots=True, eq=False)
class Overload:
    """One signature of a function. `cost` is None where a call costs one unit."""

    id: str
    params: tuple[Type, ...]
    result: Type
    run: Implementation
    member: bool = False
    cost: Cost | None = None


Functions = Mapping[str, tuple[Overload, ...]]


def function(name: str, *overloads: Overload) -> tuple[str, tuple[Overload, ...]]:
    """Return a function with its overloads, as `merge` takes them."""
    return name, overloads


def overload(id: str, params: Iterable[Type], result: Type, run: Implementation, cost: Cost | None = None) -> Overload:
    """Return an overload that is called as `f(a, b)`."""
    return Overload(id, tuple(params), result, run, False, cost)


def member(id: str, params: Iterable[Type], result: Type, run: Implementation, cost: Cost | None = None) -> Overload:
    """Return an overload that is called as `a.f(b)`; the target is the first parameter."""
    return Overload(id, tuple(params), result, run, True, cost)


def merge(*libraries: Iterable[tuple[str, tuple[Overload, ...]]]) -> dict[str, tuple[Overload, ...]]:
    """Return all functions by name; a name in several libraries has the overloads of all."""
    merged: dict[str, tuple[Overload, ...]] = {}
    for library in libraries:
        for name, overloads in library:
            merged[name] = merged.get(name, ()) + overloads
    return merged


def reads(index: int, times: int = 1) -> Cost:
    """Return the cost of reading the argument at `index` so many times."""
    return lambda args, _: ceil(size_of(args[index]) * times * STRING_FACTOR)


def reads_result(times: int) -> Cost:
    """Return the cost of building the result."""
    return lambda _, result: ceil(size_of(result) * times * STRING_FACTOR)


def matches_cost(args: tuple[Any, ...], _: Any) -> int:
    """Return the cost of a regular expression (second argument) on a string (first)."""
    return ceil((1 + size_of(args[0])) * STRING_FACTOR) * ceil(size_of(args[1]) * REGEX_FACTOR)


def smaller_of_two(args: tuple[Any, ...], _: Any) -> int:
    """Return the cost of comparing two values until one ends."""
    return ceil(min(size_of(args[0]), size_of(args[1])) * STRING_FACTOR)


def both(args: tuple[Any, ...], _: Any) -> int:
    """Return the cost of copying two strings."""
    return ceil((size_of(args[0]) + size_of(args[1])) * STRING_FACTOR)


def traversal(value: Any, visits: Visits) -> int:
    """Return the cost of visiting every part of a value."""
    visits.one()
    if isinstance(value, (str, bytes)):
        return int(len(value) * STRING_FACTOR)
    if isinstance(value, list):
        return sum(traversal(v, visits) for v in value)
    if isinstance(value, dict):
        return sum(traversal(k, visits) + traversal(v, visits) for k, v in value.items())
    return 1


def traverses(args: tuple[Any, ...], _: Any) -> int:
    """Return the cost of visiting the first argument."""
    return traversal(args[0], Visits())
