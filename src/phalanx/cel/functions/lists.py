"""Functions on lists and sets: Kubernetes' own and those of CEL's extensions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..declarations import Overload, function, member, overload, traverses
from ..types import BOOL, BYTES, DOUBLE, DURATION, DYN, INT, STRING, TIMESTAMP, UINT, Type, list_of, map_of
from ..types import param as type_param
from ..values import MOST_ELEMENTS, EvaluationError, check_length, contains, equal, kind_of
from .standard import checked_int, checked_uint
from .times import checked_duration

T, U = type_param("T"), type_param("U")
_LIST = list_of(T)
_COMPARABLE = (INT, UINT, DOUBLE, BOOL, DURATION, TIMESTAMP, STRING, BYTES)
_NUMBERS = ("int", "uint", "double")


def _check_comparable(values: list[Any], message: str = "no such overload") -> None:
    kinds = {kind_of(v) for v in values}
    if len(kinds) > 1 and not kinds <= set(_NUMBERS):
        raise EvaluationError(message)


def _is_sorted(values: list[Any]) -> bool:
    _check_comparable(values)
    return all(values[i] <= values[i + 1] for i in range(len(values) - 1))


def _extreme(name: str, choose: Callable[[list[Any]], Any]) -> Callable[[list[Any]], Any]:
    def run(values: list[Any]) -> Any:
        if not values:
            raise EvaluationError(f"{name} called on empty list")
        _check_comparable(values)
        return choose(values)

    return run


_SUMS: dict[Type, Callable[[list[Any]], Any]] = {
    INT: lambda values: checked_int(sum(values)),
    UINT: lambda values: checked_uint(sum(int(v) for v in values)),
    DOUBLE: lambda values: float(sum(values)),
    DURATION: lambda values: checked_duration(sum(v.nanos for v in values)),
}


def _sum(one: Type) -> Callable[[list[Any]], Any]:
    def run(values: list[Any]) -> Any:
        if any(kind_of(v) != one.kind for v in values):
            return _sum_of_kind(values)
        return _SUMS[one](values)

    return run


def _sum_of_kind(values: list[Any]) -> Any:
    """Return the sum of a list with unknown static type."""
    kinds = {kind_of(v) for v in values}
    for one, run in _SUMS.items():
        if kinds == {one.kind}:
            return run(values)
    raise EvaluationError("no such overload")


def _index_of(values: list[Any], item: Any) -> int:
    return next((i for i, v in enumerate(values) if equal(v, item)), -1)


def _last_index_of(values: list[Any], item: Any) -> int:
    return next((i for i in range(len(values) - 1, -1, -1) if equal(values[i], item)), -1)


def _includes(target: Any, item: Any) -> bool:
    return contains(target, item) if isinstance(target, list) else equal(target, item)


def _kubernetes() -> Iterator[tuple[str, tuple[Overload, ...]]]:
    def each(name: str, types: tuple[Type, ...], result: Type | None, run: Callable[[Type], Any]) -> Any:
        return function(
            name,
            *(member(f"list_{one}_{name}", (list_of(one),), result or one, run(one), traverses) for one in types),
        )

    yield each("isSorted", _COMPARABLE, BOOL, lambda _: _is_sorted)
    yield each("sum", tuple(_SUMS), None, _sum)
    yield each("max", _COMPARABLE, None, lambda _: _extreme("max", max))
    yield each("min", _COMPARABLE, None, lambda _: _extreme("min", min))
    yield function("indexOf", member("list_a_index_of_int", (_LIST, T), INT, _index_of, traverses))
    yield function("lastIndexOf", member("list_a_last_index_of_int", (_LIST, T), INT, _last_index_of, traverses))
    yield function("includes", member("list_includes_dyn_dyn", (DYN, DYN), BOOL, _includes, traverses))


def _slice(values: list[Any], start: int, end: int) -> list[Any]:
    what = f"cannot slice({start}, {end}), "
    if start < 0 or end < 0:
        raise EvaluationError(f"{what}negative indexes not supported")
    if start > end:
        raise EvaluationError(f"{what}start index must be less than or equal to end index")
    if end > len(values):
        raise EvaluationError(f"{what}list is length {len(values)}")
    return values[start:end]


def _flatten(values: list[Any], depth: int = 1) -> list[Any]:
    if depth < 0:
        raise EvaluationError("level must be non-negative")
    for _ in range(min(depth, 64)):
        if not any(isinstance(v, list) for v in values):
            break
        flat: list[Any] = []
        for v in values:
            flat.extend(v) if isinstance(v, list) else flat.append(v)
            check_length(len(flat), MOST_ELEMENTS)
        values = flat
    return values


def _distinct(values: list[Any]) -> list[Any]:
    check_length(len(values) ** 2)  # the comparisons are charged afterwards
    kept: list[Any] = []
    for v in values:
        if not contains(kept, v):
            kept.append(v)
    return kept


def _sort(values: list[Any]) -> list[Any]:
    return _sort_by(values, values)


def _sort_by(values: list[Any], keys: list[Any]) -> list[Any]:
    if len(values) != len(keys):
        raise EvaluationError("lists have different lengths")
    kinds = {kind_of(k) for k in keys}
    if len(kinds) > 1:
        raise EvaluationError("list elements must have the same type")
    if kinds and not kinds <= {one.kind for one in _COMPARABLE}:
        raise EvaluationError("list elements must be comparable")
    order = sorted(range(len(keys)), key=lambda i: keys[i])
    return [values[i] for i in order]


def _range(size: int) -> list[int]:
    check_length(size, MOST_ELEMENTS)
    return list(range(size))


def _walk(args: tuple[Any, ...], result: Any) -> int:
    return 1 + (len(result) if isinstance(result, list) else 0)


def _quadratic(args: tuple[Any, ...], _: Any) -> int:
    return 1 + len(args[0]) ** 2


def _extension() -> Iterator[tuple[str, tuple[Overload, ...]]]:
    yield function("slice", member("list_slice", (_LIST, INT, INT), _LIST, _slice, _walk))
    yield function(
        "flatten",
        member("list_flatten", (list_of(list_of(T)),), _LIST, _flatten, _walk),
        member("list_flatten_int", (list_of(DYN), INT), list_of(DYN), _flatten, _walk),
    )
    yield function("distinct", member("list_distinct", (_LIST,), _LIST, _distinct, _quadratic))
    yield function("reverse", member("list_reverse", (_LIST,), _LIST, lambda v: v[::-1], _walk))
    yield function("lists.range", overload("lists_range", (INT,), list_of(INT), _range, _walk))
    yield function(
        "sort", *(member(f"list_{one}_sort", (list_of(one),), list_of(one), _sort, _quadratic) for one in _COMPARABLE)
    )
    yield function(
        "@sortByAssociatedKeys",
        *(
            member(f"list_{one}_sortByAssociatedKeys", (_LIST, list_of(one)), _LIST, _sort_by, _quadratic)
            for one in _COMPARABLE
        ),
    )


def _product(args: tuple[Any, ...], _: Any) -> int:
    return 1 + len(args[0]) * len(args[1])


def _both_ways(args: tuple[Any, ...], _: Any) -> int:
    return 1 + 2 * len(args[0]) * len(args[1])


def _all_in(wanted: list[Any], values: list[Any]) -> bool:
    check_length(len(wanted) * len(values))
    return all(contains(values, v) for v in wanted)


def _intersects(first: list[Any], second: list[Any]) -> bool:
    check_length(len(first) * len(second))
    return any(contains(second, v) for v in first)


def _sets() -> Iterator[tuple[str, tuple[Overload, ...]]]:
    pair = (_LIST, _LIST)
    yield function(
        "sets.contains", overload("list_sets_contains_list", pair, BOOL, lambda a, b: _all_in(b, a), _product)
    )
    yield function(
        "sets.equivalent",
        overload("list_sets_equivalent_list", pair, BOOL, lambda a, b: _all_in(a, b) and _all_in(b, a), _both_ways),
    )
    yield function(
        "sets.intersects",
        overload("list_sets_intersects_list", pair, BOOL, _intersects, _product),
    )


def _insert(entries: dict[Any, Any], key: Any, value: Any) -> dict[Any, Any]:
    if key in entries:
        raise EvaluationError(f"insert failed: key {key} already exists")
    return {**entries, key: value}


def _insert_all(entries: dict[Any, Any], added: dict[Any, Any]) -> dict[Any, Any]:
    for key, value in added.items():
        entries = _insert(entries, key, value)
    return entries


_MAP = map_of(U, T)
MAP_INSERT = (
    function(
        "cel.@mapInsert",
        overload("@mapInsert_map_key_value", (_MAP, U, T), _MAP, _insert),
        overload("@mapInsert_map_map", (_MAP, _MAP), _MAP, _insert_all),
    ),
)
LISTS = (*_kubernetes(), *_extension(), *_sets(), *MAP_INSERT)
