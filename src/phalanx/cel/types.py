"""Types of CEL expressions for the type checker, and their names in error messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Type:
    """A type: its kind (`list`, `opaque`, …), its name and the types it is made of."""

    kind: str
    name: str
    params: tuple[Type, ...] = ()

    def __str__(self) -> str:
        if not self.params:
            return self.name
        return f"{self.name}({', '.join(map(str, self.params))})"


BOOL = Type("bool", "bool")
INT = Type("int", "int")
UINT = Type("uint", "uint")
DOUBLE = Type("double", "double")
STRING = Type("string", "string")
BYTES = Type("bytes", "bytes")
NULL = Type("null", "null")
DYN = Type("dyn", "dyn")
ANY = Type("dyn", "any")  # like DYN, but nothing can iterate over it
ERROR = Type("error", "!error!")  # type of a node with a reported error; assignable to all types
DURATION = Type("duration", "duration")
TIMESTAMP = Type("timestamp", "timestamp")
TYPE = Type("type", "type")


def list_of(element: Type) -> Type:
    """Return the type of a list with elements of one type."""
    return Type("list", "list", (element,))


def map_of(key: Type, value: Type) -> Type:
    """Return the type of a map."""
    return Type("map", "map", (key, value))


def optional_of(value: Type) -> Type:
    """Return the type of a value that may be absent."""
    return Type("opaque", "optional_type", (value,))


def type_of(value: Type) -> Type:
    """Return the type of a type value, such as `type(1)`."""
    return Type("type", "type", (value,))


def opaque(name: str) -> Type:
    """Return an opaque type, such as `kubernetes.Quantity`."""
    return Type("opaque", name)


def object_type(name: str) -> Type:
    """Return the type of an object with declared fields; the environment has them by this name."""
    return Type("object", name)


def param(name: str) -> Type:
    """Return a type parameter of an overload."""
    return Type("param", name)


def is_optional(value: Type) -> bool:
    """Return whether the type is `optional_type(T)`."""
    return value.kind == "opaque" and value.name == "optional_type"


@dataclass(frozen=True, slots=True)
class ObjectFields:
    """Declared fields of an object type.

    `fields` maps the name in an expression to (name in the object, type). `open`: any other field has type dyn.
    """

    name: str
    fields: Mapping[str, tuple[str, Type]] = field(default_factory=dict)
    open: bool = False


NAMED_TYPES: dict[str, Type] = {
    "bool": BOOL,
    "int": INT,
    "uint": UINT,
    "double": DOUBLE,
    "string": STRING,
    "bytes": BYTES,
    "list": list_of(DYN),
    "map": map_of(DYN, DYN),
    "null_type": NULL,
    "type": TYPE,
    "optional_type": optional_of(DYN),
    "google.protobuf.Timestamp": TIMESTAMP,
    "google.protobuf.Duration": DURATION,
    "net.IP": opaque("net.IP"),
    "net.CIDR": opaque("net.CIDR"),
}
