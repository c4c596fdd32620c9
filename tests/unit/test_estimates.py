"""Estimates of costs: the numbers are those of Kubernetes 1.37 for the same expressions and schemas."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.cel.devices import CompiledSelector, compile_device_selector
from phalanx.cel.environment import Environment
from phalanx.cel.estimate import MOST, estimate
from phalanx.cel.program import Program
from phalanx.cel.schemas import SchemaTypes
from phalanx.cel.sizes import size_of_schema

NAME = 'device.attributes["dra.example.com"].name'


@pytest.mark.parametrize(
    ("expression", "cost"),
    [
        ("true", 0),
        ('device.driver == "dra.example.com"', 4),
        ('"dra.example.com" in device.attributes', 3),
        (NAME, 4),
        (f"{NAME} > 0", 5),
        (f'{NAME} == "fish"', 5),
        (f"{NAME}.exists(x, x > 0)", 5 + 6 * 64),
        (f'{NAME}.includes("fish")', 4 + 64),
        (f"{NAME}.size() == 2", 6),
        ('strings.quote("ABCDEFGHIJ abcdefghij") == strings.quote("ABCDEFGHIJ abcdefghij")', 11),
        ('cel.bind(dra, device.attributes["dra.example.com"], dra.name)', 15),
        ('"name" in device.capacity["d"] && device.capacity["d"].name.isGreaterThan(quantity("1Ki"))', 10),
    ],
)
def test_selector_of_devices(expression: str, cost: int) -> None:
    selector = compile_device_selector(expression)
    assert isinstance(selector, CompiledSelector)
    assert selector.max_cost == cost


def estimated(schema: dict[str, Any], rule: str) -> int:
    types = SchemaTypes()
    found = types.type_of(schema, "self")
    assert found is not None
    program = Environment({"self": found}, types.objects).compile(rule)
    assert isinstance(program, Program), str(program)
    sizes = size_of_schema(schema)
    assert sizes is not None
    return estimate(program.checked, {"self": sizes}, sizes)


def array(kind: str, limit: int | None = None) -> dict[str, Any]:
    return {"type": "array", "items": {"type": kind}, **({"maxItems": limit} if limit is not None else {})}


def text(limit: int | None = None) -> dict[str, Any]:
    return {"type": "string", **({"maxLength": limit} if limit is not None else {})}


@pytest.mark.parametrize(
    ("schema", "rule", "cost"),
    [
        (array("number"), "self.all(x, true)", 4718591),
        (array("number", 10), "self.all(x, true)", 32),
        (array("string"), "self.all(x, true)", 3145727),
        (array("number", 10), "self.all(x, self.all(y, true))", 352),
        (array("number", 10), "self.all(x, self.all(y, self.all(z, true)))", 3552),
        (array("string"), "self[1] == self[1]", 314577),
        (array("number"), "self[1] == 0.0", 2),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "self.all(x, true)", 1348169),
        (text(), "self.contains('test')", 314574),
        (text(10), "self.contains('test')", 5),
        (text(), "self.startsWith('test')", 2),
        (text(), 'size(self + "hello") > size("hello")', 314578),
        (text(4), 'size(self + "hello") > size("hello")', 7),
        (text(), 'self.matches("x")', 314574),
        (text(50), 'self.matches("x")', 22),
        (text(), '"".matches("(((((((((())))))))))[0-9]")', 7),
        (text(), "matches(url(self).getEscapedPath(), '^/v[0-9]+$')", 314576),
        ({"type": "string", "format": "byte", "maxLength": 80}, "string(self).find('a') == ''", 18),
        (text(18), "isCIDR(self) && cidr(self).ip().family() == 4", 21),
        (text(18), "self.split('.')[0].matches('a')", 25),
    ],
)
def test_rule_of_a_definition(schema: dict[str, Any], rule: str, cost: int) -> None:
    assert estimated(schema, rule) == cost


def test_estimate_never_overflows() -> None:
    rule = "self" + "".join(f".all(x{i}, self" for i in range(20)) + ".size() > 0" + ")" * 20
    assert estimated(array("string"), rule) == MOST
