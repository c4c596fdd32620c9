"""CEL selectors of devices (resource.k8s.io): compiled once per expression, evaluated per device.

selector = compile_device_selector('device.attributes["gpu.example.com"].model == "a100"')
device = device_value("gpu.example.com", {"model": {"string": "a100"}}, {"memory": {"value": "40Gi"}})
if isinstance(selector, DeviceSelector):
    selector.matches(device)        # True, or raises EvaluationError with upstream's text
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any

from . import types as t
from .declarations import Functions
from .environment import FOR_NEW, KUBERNETES, Environment
from .estimate import estimate
from .functions.numbers import QUANTITY, quantity, semver
from .program import Program
from .sizes import Sized
from .syntax import CallExpression, CompileError, Const, Node, Select
from .values import EvaluationError, FieldMap, kind_of, type_name

MAX_COST = 1_000_000  # cost units that one evaluation may use (CELSelectorExpressionMaxCost)
_INTERNED = 4096  # expressions

Attributes = Mapping[str, Mapping[str, Any]]


def _environment(attribute: t.Type, functions: Functions) -> Environment:
    device = t.ObjectFields(
        "kubernetes.DRADevice",
        {
            "driver": ("driver", t.STRING),
            "attributes": ("attributes", t.map_of(t.STRING, t.map_of(t.STRING, attribute))),
            "capacity": ("capacity", t.map_of(t.STRING, t.map_of(t.STRING, QUANTITY))),
            "allowMultipleAllocations": ("allowMultipleAllocations", t.BOOL),
        },
    )
    return Environment({"device": t.object_type(device.name)}, {device.name: device}, functions)


_ENVIRONMENT = _environment(t.DYN, KUBERNETES)
_FOR_NEW = _environment(t.ANY, FOR_NEW)  # lists as attributes have a gate, which is off

# Sizes that the API allows: domains and drivers of 63 characters, names of 32, 32 attributes, values of 64.
_ATTRIBUTE = Sized(64)
_SIZES = {
    "device": Sized(
        fields={
            "driver": Sized(63),
            "attributes": Sized(32, Sized(32, _ATTRIBUTE, Sized(32), by_name=True), Sized(63)),
            "capacity": Sized(32, Sized(32, Sized(), Sized(32)), Sized(63)),
            "allowMultipleAllocations": Sized(1),
        }
    )
}


class DomainMap(FieldMap):
    """Attributes or capacity by domain: a domain that the device does not have is an empty map."""

    __slots__ = ("_domains",)

    def __init__(self, domains: dict[str, dict[str, Any]]) -> None:
        self._domains = domains

    def get_field(self, name: Any) -> Any:
        return self._domains.get(name, {})

    def has_field(self, name: Any) -> bool:
        return True

    def contains(self, name: Any) -> bool:
        return name in self._domains

    def keys(self) -> list[Any]:
        return list(self._domains)


@dataclass(frozen=True, slots=True)
class DeviceValue:
    """A device for expressions. `problem`: why it cannot be evaluated, such as an invalid version."""

    variables: Mapping[str, Any]
    problem: str = ""


def _split(name: str, driver: str) -> tuple[str, str]:
    domain, slash, rest = name.partition("/")
    return (domain, rest) if slash else (driver, name)


def _attribute(value: Mapping[str, Any]) -> Any:
    """Return the one value that an attribute holds."""
    for plural, scalar in (("ints", "int"), ("bools", "bool"), ("strings", "string")):
        for field in (plural, scalar):
            if value.get(field) is not None:
                return value[field]
    if value.get("versions") is not None:
        return [semver(v) for v in value["versions"]]
    if value.get("version") is not None:
        return semver(value["version"])
    raise EvaluationError("unsupported attribute value")


def device_value(
    driver: str,
    attributes: Attributes | None = None,
    capacity: Attributes | None = None,
    allow_multiple_allocations: bool = False,
) -> DeviceValue:
    """Return the value of a device from the fields that a ResourceSlice has for it.

    `attributes` is {qualified name: {"string" | "int" | "bool" | "version" | a plural of those: value}},
    `capacity` is {qualified name: {"value": quantity}}. A name without a domain belongs to the driver's domain.
    """
    problem = ""
    by_domain: dict[str, dict[str, Any]] = {}
    for name, attribute in (attributes or {}).items():
        domain, short = _split(name, driver)
        try:
            by_domain.setdefault(domain, {})[short] = _attribute(attribute)
        except EvaluationError as error:
            what = str(error) if "unsupported" in str(error) else f"parse semantic version: {error}"
            problem = problem or f"attribute {name}: {what}"
    amounts: dict[str, dict[str, Any]] = {}
    for name, entry in (capacity or {}).items():
        domain, short = _split(name, driver)
        try:
            amounts.setdefault(domain, {})[short] = quantity(entry.get("value", "0"))
        except EvaluationError as error:
            problem = problem or f"capacity {name}: {error}"
    fields = {
        "driver": driver,
        "attributes": DomainMap(by_domain),
        "capacity": DomainMap(amounts),
        "allowMultipleAllocations": allow_multiple_allocations,
    }
    return DeviceValue({"device": fields}, problem)


class CompiledSelector:
    """Return the value of a device from its fields in a ResourceSlice.

    `attributes` is {qualified name: {"string" | "int" | "bool" | "version" | a plural of those: value}},
    `capacity` is {qualified name: {"value": quantity}}. A name without a domain belongs to the driver's domain.
    """

    __slots__ = ("expression", "max_cost", "program", "reads")

    def __init__(self, program: Program) -> None:
        self.expression = program.expression
        self.program = program
        self.max_cost = estimate(program.checked, _SIZES)  # cost units; the API refuses more than MAX_COST
        # Attributes ("domain/name") that it reads: devices with equal values of these, of their versions and of their
        # capacity get the same answer. None: it may read any attribute.
        self.reads = _attributes_read(program.checked.node)

    def matches(self, device: DeviceValue, cost_limit: int = MAX_COST) -> bool:
        """Return whether the device is selected, or raise EvaluationError: a missing attribute is "no such key"."""
        if device.problem:
            raise EvaluationError(device.problem)
        value, _ = self.program.evaluate(device.variables, cost_limit)
        if value is True or value is False:
            return value
        kind = type_name(value)
        what = f"type conversion error from '{kind}' to 'bool'"
        if isinstance(value, str):
            what = "unsupported native conversion from string to 'bool'"
        elif kind in ("int", "uint"):
            what = f"unsupported type conversion from '{kind}' to bool"
        raise EvaluationError(f"CEL result of type {kind_of(value)} could not be converted to bool: {what}")


def _attributes_read(node: Node) -> frozenset[str] | None:
    """Return the attributes that an expression reads by constant names; None if it uses attributes in another way."""
    found: set[str] = set()
    rest: list[Any] = [node]
    while rest:
        at = rest.pop()
        name = _attribute_read(at)
        if name is not None:
            found.add(name)
        elif isinstance(at, Select) and at.name == "attributes":
            return None  # the map itself, or one of its domains, is used
        elif is_dataclass(at):
            rest += (getattr(at, part.name) for part in fields(at))
        elif isinstance(at, list | tuple):
            rest += at
    return frozenset(found)


def _attribute_read(node: Any) -> str | None:
    """Return "domain/name" of `device.attributes["domain"].name` and `device.attributes["domain"]["name"]`."""
    if isinstance(node, Select):
        domain, name = node.operand, node.name
    else:
        domain, name = _constant_index(node)
    attributes, domain_name = _constant_index(domain)
    if isinstance(attributes, Select) and attributes.name == "attributes" and name and domain_name:
        return f"{domain_name}/{name}"
    return None


def _constant_index(node: Any) -> tuple[Any, str]:
    """Return the operand and the index of `operand["index"]`; index "" for any other node."""
    if isinstance(node, CallExpression) and node.function == "_[_]" and isinstance(node.args[1], Const):
        index = node.args[1].value
        return node.args[0], index if isinstance(index, str) else ""
    return None, ""


@lru_cache(maxsize=_INTERNED)
def compile_device_selector(expression: str, new: bool = False) -> CompiledSelector | CompileError:
    """Return the selector of an expression, or its compile error. Results are interned by expression.

    `new`: it is about to be stored, and may use fewer functions than a stored one.
    """
    program = (_FOR_NEW if new else _ENVIRONMENT).compile(expression)
    if isinstance(program, CompileError):
        return CompileError(program.full, program.problems)
    if program.type.kind not in ("bool", "dyn"):
        return CompileError(f"must evaluate to bool or the unknown type, not {program.type}")
    return CompiledSelector(program)
