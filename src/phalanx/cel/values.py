"""Run-time values of CEL and their equality.

bool, int, float, str, bytes, None, list and dict are used directly; the classes here are the other types.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MAX_INT = 2**63 - 1
MIN_INT = -(2**63)
MAX_UINT = 2**64 - 1


class EvaluationError(Exception):
    """An expression failed at run time. The text is that of Kubernetes."""


class CostLimitExceeded(EvaluationError):
    """The evaluation exceeded its cost limit. No operator recovers from it."""

    def __init__(self) -> None:
        super().__init__("operation cancelled: actual cost limit exceeded")


class Uint(int):
    """An unsigned integer of 64 bits."""

    __slots__ = ()


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A span of time in nanoseconds."""

    nanos: int


@dataclass(frozen=True, slots=True, order=True)
class Timestamp:
    """A moment: nanoseconds since 1970-01-01T00:00:00Z. `offset`: seconds east of UTC in which it was written."""

    nanos: int
    offset: int = field(default=0, compare=False)


class Optional:
    """A value or its absence (`NONE`)."""

    __slots__ = ("present", "value")

    def __init__(self, present: bool, value: Any) -> None:
        self.present = present
        self.value = value


NONE = Optional(False, None)


def some(value: Any) -> Optional:
    """Return an optional that has a value."""
    return Optional(True, value)


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A type as a value: `type(1) == int`."""

    name: str


class ObjectValue(dict[str, Any]):
    """An object built by an expression, such as `Object.spec{replicas: 3}`."""

    __slots__ = ("type_name",)

    def __init__(self, type_name: str, fields: dict[str, Any]) -> None:
        super().__init__(fields)
        self.type_name = type_name


class SetList(list[Any]):
    """A list with `x-kubernetes-list-type: set`: equality ignores the order, and `+` is a union."""

    __slots__ = ()


class MapList(list[Any]):
    """A list with `x-kubernetes-list-type: map`: elements are identified by keys, and `+` merges."""

    __slots__ = ("keys",)

    def __init__(self, elements: list[Any], keys: tuple[str, ...]) -> None:
        super().__init__(elements)
        self.keys = keys

    def key_of(self, element: Any) -> tuple[Any, ...]:
        """Return the key of an element."""
        if not isinstance(element, dict):
            return ()
        return tuple(repr(element.get(k)) for k in self.keys)


class FieldMap:
    """A map with computed or default entries. Subclasses define the result for a missing name."""

    __slots__ = ()

    def get_field(self, name: Any) -> Any:
        """Return the entry, or raise EvaluationError."""
        raise EvaluationError(f"no such key: {name}")

    def has_field(self, name: Any) -> bool:
        """Return whether `has()` is true for the name."""
        raise NotImplementedError

    def contains(self, name: Any) -> bool:
        """Return whether `name in map` is true."""
        return self.has_field(name)

    def keys(self) -> list[Any]:
        """Return the names for a loop over the map."""
        raise NotImplementedError


KINDS: dict[type, str] = {
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null",
    list: "list",
    SetList: "list",
    MapList: "list",
    dict: "map",
    Duration: "duration",
    Timestamp: "timestamp",
    Optional: "optional_type",
    TypeValue: "type",
    ObjectValue: "object",
}
"""The kind of a value by its class. Functions with their own types register them with `register`."""

_TYPE_NAMES = {
    "null": "null_type",
    "duration": "google.protobuf.Duration",
    "timestamp": "google.protobuf.Timestamp",
}
_NUMBERS = {"int", "uint", "double"}


def register(python_class: type, kind: str) -> None:
    """Register a class as CEL values of a kind."""
    KINDS[python_class] = kind


def kind_of(value: Any) -> str:
    """Return the kind of a value: `int`, `string`, `kubernetes.Quantity`, …"""
    kind = KINDS.get(type(value))
    if kind is None:
        kind = "map" if isinstance(value, FieldMap) else "dyn"
    return kind


def type_name(value: Any) -> str:
    """Return the name given by `type()`."""
    if isinstance(value, ObjectValue):
        return value.type_name
    kind = kind_of(value)
    return _TYPE_NAMES.get(kind, kind)


MOST_PARTS = 250_000  # lists and maps visited by one operation: shared parts can make a value large
MOST_ELEMENTS = 1_000_000  # of a list
MOST_CHARACTERS = 10_000_000  # of a string; also comparisons of one operation


class Visits:
    """Counts the visited parts of a value and stops at MOST_PARTS."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MOST_PARTS

    def one(self) -> None:
        """Count one part, or raise CostLimitExceeded."""
        self.left -= 1
        if self.left < 0:
            raise CostLimitExceeded


def check_length(count: int, most: int = MOST_CHARACTERS) -> None:
    """Raise CostLimitExceeded for a list or string that is too long to evaluate."""
    if count > most:
        raise CostLimitExceeded


def equal(a: Any, b: Any, visits: Visits | None = None) -> bool:
    """Return whether two values are equal by CEL's rules: numbers across types, other values within a type."""
    kind_a, kind_b = kind_of(a), kind_of(b)
    if kind_a != kind_b:
        if kind_a in _NUMBERS and kind_b in _NUMBERS:
            return bool(float(a) == float(b)) if "double" in (kind_a, kind_b) else bool(a == b)
        return {kind_a, kind_b} == {"map", "object"} and _equal_maps(a, b, visits or Visits())
    if kind_a == "list":
        return _equal_lists(a, b, visits or Visits())
    if kind_a in ("map", "object"):
        return _equal_maps(a, b, visits or Visits())
    if kind_a == "optional_type":
        return a.present == b.present and (not a.present or equal(a.value, b.value, visits))
    return bool(a == b)


def _equal_lists(a: list[Any], b: list[Any], visits: Visits) -> bool:
    visits.one()
    if len(a) != len(b):
        return False
    if isinstance(a, SetList):
        return all(contains(b, x, visits) for x in a)
    if isinstance(a, MapList):
        by_key = {a.key_of(x): x for x in b}
        return all((key := a.key_of(x)) in by_key and equal(x, by_key[key], visits) for x in a)
    return all(equal(x, y, visits) for x, y in zip(a, b, strict=True))


def entries(value: Any) -> dict[Any, Any]:
    """Return a map as a plain dict."""
    if isinstance(value, FieldMap):
        return {k: value.get_field(k) for k in value.keys()}  # noqa: SIM118 (not a dict)
    return dict(value)


def _equal_maps(a: Any, b: Any, visits: Visits) -> bool:
    visits.one()
    left, right = entries(a), entries(b)
    if len(left) != len(right):
        return False
    return all(k in right and equal(v, right[k], visits) for k, v in left.items())


def contains(elements: list[Any], value: Any, visits: Visits | None = None) -> bool:
    """Return whether a list has an element that equals the value."""
    counted = visits or Visits()
    return any(equal(x, value, counted) for x in elements)


def size_of(value: Any) -> int:
    """Return the size for costs: length of strings, lists and maps, else 1."""
    kind = type(value)
    if kind is str or kind is bytes or isinstance(value, (list, dict)):
        return len(value)
    if kind is Optional and value.present:
        return size_of(value.value)
    if isinstance(value, FieldMap):
        return len(value.keys())
    return 1


def plain(value: Any, visits: Visits | None = None) -> Any:
    """Return a value as JSON; optionals without a value become None."""
    counted = visits or Visits()
    counted.one()
    if isinstance(value, list):
        return [plain(x, counted) for x in value]
    if isinstance(value, (dict, FieldMap)):
        return {k if isinstance(k, str) else str(k): plain(v, counted) for k, v in entries(value).items()}
    if isinstance(value, Optional):
        return plain(value.value, counted) if value.present else None
    if isinstance(value, Uint):
        return int(value)
    if isinstance(value, (Duration, Timestamp)):
        from .functions.times import format_value

        return format_value(value)
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
