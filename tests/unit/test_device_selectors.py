"""Selectors of devices: what a driver publishes, what an expression sees."""

from __future__ import annotations

import pytest

from phalanx.cel.devices import CompiledSelector, compile_device_selector, device_value
from phalanx.cel.syntax import CompileError
from phalanx.cel.values import EvaluationError

DEVICE = device_value(
    "gpu.example.com",
    {
        "model": {"string": "a100"},
        "driverVersion": {"version": "1.2.3"},
        "index": {"int": 3},
        "mig": {"bool": False},
        "lanes": {"ints": [1, 2]},
        "net.example.com/root": {"string": "pci0"},
    },
    {"memory": {"value": "40Gi"}, "net.example.com/bandwidth": {"value": "10G"}},
)


def selector(expression: str) -> CompiledSelector:
    found = compile_device_selector(expression)
    assert isinstance(found, CompiledSelector), str(found)
    return found


@pytest.mark.parametrize(
    "expression",
    [
        'device.attributes["gpu.example.com"].model == "a100" && '
        'device.capacity["gpu.example.com"].memory.compareTo(quantity("10Gi")) >= 0',
        'device.driver == "gpu.example.com" && !device.allowMultipleAllocations',
        'device.attributes["net.example.com"].root == "pci0"',
        'device.capacity["net.example.com"].bandwidth == quantity("10000M")',
        'device.attributes["gpu.example.com"].driverVersion.isGreaterThan(semver("1.0.0"))',
        'device.attributes["gpu.example.com"].index in [1, 2, 3]',
        'device.attributes["gpu.example.com"].lanes.includes(2)',
        '!("other.example.com" in device.attributes) && device.attributes["other.example.com"] == {}',
        '!has(device.attributes["gpu.example.com"].none) && has(device.attributes["gpu.example.com"].mig)',
        'device.attributes["gpu.example.com"].?none.orValue("x") == "x"',
        'cel.bind(gpu, device.attributes["gpu.example.com"], gpu.model.startsWith("a") && !gpu.mig)',
        '!device.attributes["gpu.example.com"].mig',
    ],
)
def test_device_is_selected(expression: str) -> None:
    assert selector(expression).matches(DEVICE) is True


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ('device.attributes["gpu.example.com"].none == 1', "no such key: none"),
        ('device.attributes["other.example.com"].model == "a"', "no such key: model"),
        (
            'device.attributes["gpu.example.com"].index',
            "CEL result of type int could not be converted to bool: unsupported type conversion from 'int' to bool",
        ),
        ('device.attributes["gpu.example.com"].model > 1', "no such overload: _>_"),
        (
            "lists.range(10000).all(x, lists.range(10000).all(y, x + y >= 0))",
            "operation cancelled: actual cost limit exceeded",
        ),
    ],
)
def test_selector_that_fails_at_run_time(expression: str, message: str) -> None:
    with pytest.raises(EvaluationError) as problem:
        selector(expression).matches(DEVICE)
    assert str(problem.value) == message


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("device.nosuch", "undefined field 'nosuch'"),
        ("device.driver", "must evaluate to bool or the unknown type, not string"),
        ("noNoNo", "compilation failed: ERROR: <input>:1:1: undeclared reference to 'noNoNo' (in container '')"),
        ("true &&", "compilation failed: ERROR: <input>:1:8: Syntax error"),
    ],
)
def test_selector_that_does_not_compile(expression: str, message: str) -> None:
    found = compile_device_selector(expression)
    assert isinstance(found, CompileError)
    assert message in found.message


def test_version_that_is_none_is_an_error_of_the_device() -> None:
    device = device_value("d", {"v": {"version": "one"}})
    with pytest.raises(EvaluationError, match="attribute v: parse semantic version: No Major"):
        selector("true").matches(device)


def test_equal_expressions_share_one_selector() -> None:
    assert compile_device_selector("device.driver == 'x'") is compile_device_selector("device.driver == 'x'")


@pytest.mark.parametrize("expression", ["{}.exists(x, x == 1)", "{}.map(x, x)[0] == 1", "[{}][0].all(x, x == 1)"])
def test_a_new_selector_cannot_iterate_over_an_attribute(expression: str) -> None:
    text = expression.format('device.attributes["d"].a')
    found = compile_device_selector(text, new=True)
    assert isinstance(found, CompileError)
    assert "expression of type 'any' cannot be range of a comprehension (must be list, map, or dynamic)" in str(found)
    selector(text)  # stored by a server with lists as attributes


def test_a_new_selector_can_iterate_over_the_names_of_attributes() -> None:
    text = 'device.attributes["d"].exists(name, name == "a")'
    assert isinstance(compile_device_selector(text, new=True), CompiledSelector)
