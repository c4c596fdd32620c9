"""Operators, conversions and string functions of the CEL standard."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any

import re2

from ..declarations import Overload, both, function, matches_cost, member, overload, reads, smaller_of_two
from ..types import BOOL, BYTES, DOUBLE, DURATION, DYN, INT, STRING, TIMESTAMP, UINT, Type, list_of, map_of, type_of
from ..types import param as type_param
from ..values import (
    MAX_INT,
    MAX_UINT,
    MIN_INT,
    MOST_ELEMENTS,
    Duration,
    EvaluationError,
    FieldMap,
    MapList,
    SetList,
    Timestamp,
    TypeValue,
    Uint,
    check_length,
    contains,
    equal,
    size_of,
    type_name,
)
from .times import checked_duration, checked_timestamp, format_value, parse_duration, parse_timestamp

A, B = type_param("A"), type_param("B")
_LIST, _MAP = list_of(A), map_of(A, B)


def checked_int(value: int) -> int:
    """Return an int of 64 bits, or raise EvaluationError."""
    if MIN_INT <= value <= MAX_INT:
        return value
    raise EvaluationError("integer overflow")


def checked_uint(value: int) -> Uint:
    """Return an unsigned int of 64 bits, or raise EvaluationError."""
    if 0 <= value <= MAX_UINT:
        return Uint(value)
    raise EvaluationError("unsigned integer overflow")


def _divide(a: int, b: int) -> int:
    if b == 0:
        raise EvaluationError("division by zero")
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def _modulo(a: int, b: int) -> int:
    if b == 0:
        raise EvaluationError("modulus by zero")
    return a - b * _divide(a, b)


def _divide_double(a: float, b: float) -> float:
    if b:
        return a / b
    return a * float("inf") if a else float("nan")


def _add_lists(a: list[Any], b: list[Any]) -> list[Any]:
    check_length(len(a) + len(b), MOST_ELEMENTS)
    if isinstance(a, SetList):
        return SetList([*a, *(x for x in b if not contains(a, x))])
    if isinstance(a, MapList):
        added = {a.key_of(x): x for x in b}
        kept = [added.pop(a.key_of(x), x) for x in a]
        return MapList([*kept, *added.values()], a.keys)
    return [*a, *b]


def _add_texts(a: Any, b: Any) -> Any:
    check_length(len(a) + len(b))
    return a + b


def _arithmetic() -> Iterator[tuple[str, tuple[Overload, ...]]]:
    def ints(name: str, run: Callable[[int, int], int]) -> tuple[Overload, Overload]:
        return (
            overload(f"{name}_int64", (INT, INT), INT, lambda a, b: checked_int(run(a, b))),
            overload(f"{name}_uint64", (UINT, UINT), UINT, lambda a, b: checked_uint(run(int(a), int(b)))),
        )

    def spans(a: Any, b: Any) -> Duration:
        return checked_duration(a.nanos + b.nanos)

    def moment(a: Any, b: Any) -> Timestamp:
        return checked_timestamp(a.nanos + b.nanos, a.offset if isinstance(a, Timestamp) else b.offset)

    yield function(
        "_+_",
        *ints("add", operator.add),
        overload("add_double", (DOUBLE, DOUBLE), DOUBLE, operator.add),
        overload("add_string", (STRING, STRING), STRING, _add_texts, both),
        overload("add_bytes", (BYTES, BYTES), BYTES, _add_texts, both),
        overload("add_list", (_LIST, _LIST), _LIST, _add_lists),
        overload("add_duration_duration", (DURATION, DURATION), DURATION, spans),
        overload("add_duration_timestamp", (DURATION, TIMESTAMP), TIMESTAMP, moment),
        overload("add_timestamp_duration", (TIMESTAMP, DURATION), TIMESTAMP, moment),
    )
    yield function(
        "_-_",
        *ints("subtract", operator.sub),
        overload("subtract_double", (DOUBLE, DOUBLE), DOUBLE, operator.sub),
        overload(
            "subtract_duration_duration",
            (DURATION, DURATION),
            DURATION,
            lambda a, b: checked_duration(a.nanos - b.nanos),
        ),
        overload(
            "subtract_timestamp_timestamp",
            (TIMESTAMP, TIMESTAMP),
            DURATION,
            lambda a, b: checked_duration(a.nanos - b.nanos),
        ),
        overload(
            "subtract_timestamp_duration",
            (TIMESTAMP, DURATION),
            TIMESTAMP,
            lambda a, b: checked_timestamp(a.nanos - b.nanos, a.offset),
        ),
    )
    yield function(
        "_*_",
        *ints("multiply", operator.mul),
        overload("multiply_double", (DOUBLE, DOUBLE), DOUBLE, operator.mul),
    )
    yield function("_/_", *ints("divide", _divide), overload("divide_double", (DOUBLE, DOUBLE), DOUBLE, _divide_double))
    yield function("_%_", *ints("modulo", _modulo))
    yield function(
        "-_",
        overload("negate_int64", (INT,), INT, lambda a: checked_int(-a)),
        overload("negate_double", (DOUBLE,), DOUBLE, operator.neg),
    )


_NUMBERS = (INT, UINT, DOUBLE)
_ORDERED = (BOOL, STRING, BYTES, TIMESTAMP, DURATION)


def _compare_doubles(test: Callable[[Any, Any], bool], a: float, b: float) -> bool:
    a, b = float(a), float(b)  # also large integers, which a double rounds
    if a != a or b != b:
        raise EvaluationError("NaN values cannot be ordered")
    return test(a, b)


def _comparisons() -> Iterator[tuple[str, tuple[Overload, ...]]]:
    tests: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
        "_<_": ("less", operator.lt),
        "_<=_": ("less_equals", operator.le),
        "_>_": ("greater", operator.gt),
        "_>=_": ("greater_equals", operator.ge),
    }
    for name, (word, run) in tests.items():
        pairs = [(one, one) for one in _ORDERED] + [(a, b) for a in _NUMBERS for b in _NUMBERS]
        on_doubles = partial(_compare_doubles, run)
        yield function(
            name,
            *(
                overload(
                    f"{word}_{a}_{b}",
                    (a, b),
                    BOOL,
                    on_doubles if DOUBLE in (a, b) else run,
                    smaller_of_two if a in (STRING, BYTES) else None,
                )
                for a, b in pairs
            ),
        )
    yield function("_==_", overload("equals", (A, A), BOOL, equal, smaller_of_two))
    yield function("_!=_", overload("not_equals", (A, A), BOOL, lambda a, b: not equal(a, b), smaller_of_two))
    yield function("!_", overload("logical_not", (BOOL,), BOOL, operator.not_))


def _in_map(key: Any, entries: Any) -> bool:
    return entries.contains(key) if isinstance(entries, FieldMap) else key in entries


def _never(*_: Any) -> Any:
    raise EvaluationError("no such overload")


def _structure() -> Iterator[tuple[str, tuple[Overload, ...]]]:
    yield function("_&&_", overload("logical_and", (BOOL, BOOL), BOOL, _never))
    yield function("_||_", overload("logical_or", (BOOL, BOOL), BOOL, _never))
    yield function("_?_:_", overload("conditional", (BOOL, A, A), A, _never))
    yield function("@not_strictly_false", overload("not_strictly_false", (BOOL,), BOOL, _never))
    yield function("_[_]", overload("index_list", (_LIST, INT), A, _never), overload("index_map", (_MAP, A), B, _never))
    yield function(
        "@in",
        overload("in_list", (A, _LIST), BOOL, lambda a, b: contains(b, a), lambda args, _: size_of(args[1])),
        overload("in_map", (A, _MAP), BOOL, _in_map),
    )
    sizes = (("bytes", BYTES), ("list", _LIST), ("map", _MAP), ("string", STRING))
    yield function(
        "size",
        *(overload(f"size_{name}", (one,), INT, size_of) for name, one in sizes),
        *(member(f"{name}_size", (one,), INT, size_of) for name, one in sizes),
    )
    yield function("type", overload("type", (A,), type_of(A), lambda value: TypeValue(type_name(value))))
    yield function("dyn", overload("to_dyn", (A,), DYN, lambda value: value))


def _refuse(value: Any, wanted: str) -> EvaluationError:
    return EvaluationError(f"type conversion error from '{type_name(value)}' to '{wanted}'")


def _to_int(value: Any) -> int:
    if isinstance(value, Timestamp):
        return value.nanos // 10**9
    if isinstance(value, float):
        if value != value or not -(2.0**63) < value < 2.0**63:
            raise EvaluationError("integer overflow")
        return int(value)
    if isinstance(value, str):
        try:
            return checked_int(int(value)) if value.strip("+-").isdecimal() and value.isascii() else int("")
        except ValueError:
            raise _refuse(value, "int") from None
    return checked_int(int(value))


def _to_uint(value: Any) -> Uint:
    if isinstance(value, float):
        if value != value or not 0 <= value < 2.0**64:
            raise EvaluationError("unsigned integer overflow")
        return Uint(int(value))
    if isinstance(value, str):
        if not (value.isdecimal() and value.isascii()):
            raise _refuse(value, "uint")
        return checked_uint(int(value)) if len(value) < 32 else checked_uint(-1)
    return checked_uint(int(value))


def _to_double(value: Any) -> float:
    try:
        return float(value)
    except ValueError:
        raise _refuse(value, "double") from None


_TRUE, _FALSE = ("true", "True", "TRUE", "t", "T", "1"), ("false", "False", "FALSE", "f", "F", "0")


def _to_bool(value: str) -> bool:
    if value in _TRUE:
        return True
    if value in _FALSE:
        return False
    raise _refuse(value, "bool")


def double_text(value: float) -> str:
    """Return a double as `string()` prints it."""
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "+Inf" if value > 0 else "-Inf"
    text = repr(value)
    if "e" in text:
        mantissa, _, exponent = text.partition("e")
        return f"{mantissa.removesuffix('.0')}e{exponent}"
    return text.removesuffix(".0")


def _to_string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (Duration, Timestamp)):
        return format_value(value)
    if isinstance(value, float):
        return double_text(value)
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise EvaluationError("invalid UTF-8 in bytes, cannot convert to string") from None
    return str(value)


def _conversions() -> Iterator[tuple[str, tuple[Overload, ...]]]:
    def conversion(target: Type, run: Callable[[Any], Any], *sources: Type) -> tuple[str, tuple[Overload, ...]]:
        return function(
            target.name,
            *(
                overload(
                    f"{one}_to_{target}", (one,), target, run, reads(0) if {one, target} == {STRING, BYTES} else None
                )
                for one in sources
            ),
            overload(f"{target}_to_{target}", (target,), target, lambda value: value),
        )

    yield conversion(INT, _to_int, UINT, DOUBLE, STRING, TIMESTAMP)
    yield conversion(UINT, _to_uint, INT, DOUBLE, STRING)
    yield conversion(DOUBLE, _to_double, INT, UINT, STRING)
    yield conversion(BOOL, _to_bool, STRING)
    yield conversion(BYTES, lambda value: value.encode(), STRING)
    yield conversion(STRING, _to_string, INT, UINT, DOUBLE, BOOL, BYTES, TIMESTAMP, DURATION)
    yield conversion(DURATION, lambda value: parse_duration(value), STRING)
    yield conversion(TIMESTAMP, _to_timestamp, STRING, INT)


def _to_timestamp(value: Any) -> Timestamp:
    return parse_timestamp(value) if isinstance(value, str) else checked_timestamp(value * 10**9)


# What Go's regexp says where RE2 has other words.
_GO_REASONS = {
    "missing ]": "missing closing ]",
    "missing )": "missing closing )",
    "no argument for repetition operator": "missing argument to repetition operator",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid repetition size": "invalid repeat count",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "invalid named capture group": "invalid named capture",
}


@lru_cache(maxsize=1024)
def compiled(pattern: str) -> Any:
    """Return a regular expression, or raise EvaluationError."""
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as problem:
        reason = problem.args[0] if problem.args else ""
        text = reason.decode() if isinstance(reason, bytes) else str(reason)
        code, colon, part = text.partition(": ")
        shown = f"{_GO_REASONS.get(code, code)}: `{part}`" if colon else text
        raise EvaluationError(f"error parsing regexp: {shown}") from None


def _matches(text: str, pattern: str) -> bool:
    return compiled(pattern).search(text) is not None


def _contains_cost(args: tuple[Any, ...], _: Any) -> int:
    return reads(0)(args, None) * reads(1)(args, None)


def _strings() -> Iterator[tuple[str, tuple[Overload, ...]]]:
    yield function(
        "contains",
        member("contains_string", (STRING, STRING), BOOL, operator.contains, _contains_cost),
    )
    yield function("startsWith", member("starts_with_string", (STRING, STRING), BOOL, str.startswith, reads(0)))
    yield function("endsWith", member("ends_with_string", (STRING, STRING), BOOL, str.endswith, reads(0)))
    yield function(
        "matches",
        overload("matches", (STRING, STRING), BOOL, _matches, matches_cost),
        member("matches_string", (STRING, STRING), BOOL, _matches, matches_cost),
    )


STANDARD = (*_arithmetic(), *_comparisons(), *_structure(), *_conversions(), *_strings())
