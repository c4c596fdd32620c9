"""Values with a schema: lists that are sets or have keys, formats, names with special characters."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.cel.environment import Environment
from phalanx.cel.program import Program
from phalanx.cel.schemas import SchemaTypes, escaped, value_of

ITEM = {"type": "object", "properties": {"name": {"type": "string"}, "n": {"type": "integer"}}}
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "other": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "steps": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": ITEM,
        },
        "more": {
            "type": "array",
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": ITEM,
        },
        "plain": {"type": "array", "items": {"type": "string"}},
        "bytes": {"type": "string", "format": "byte"},
        "day": {"type": "string", "format": "date"},
        "any": {"x-kubernetes-int-or-string": True},
        "empty": {"type": "string", "nullable": True},
        "a.b/c-d__e": {"type": "integer"},
    },
}
VALUE = {
    "tags": ["a", "b"],
    "other": ["b", "a"],
    "steps": [{"name": "x", "n": 1}, {"name": "y", "n": 2}],
    "more": [{"name": "y", "n": 2}, {"name": "x", "n": 1}],
    "plain": ["a", "b"],
    "bytes": "YWI=",
    "day": "2020-01-02",
    "any": "50%",
    "empty": None,
    "a.b/c-d__e": 5,
}


@pytest.mark.parametrize(
    "rule",
    [
        "self.tags == self.other",
        "self.plain != ['b', 'a']",
        "self.tags + ['b', 'c'] == ['c', 'b', 'a']",
        "(self.tags + ['b', 'c']).size() == 3",
        "dyn(self.steps) == dyn(self.more)",
        "(self.steps + self.steps).size() == 2",
        "self.bytes == b'ab'",
        "self.day == timestamp('2020-01-02T00:00:00Z')",
        "type(self.any) == string && self.any.endsWith('%')",
        "!has(self.empty)",  # null counts as absent
        "self.a__dot__b__slash__c__dash__d__underscores__e == 5",
        "self.?plain.hasValue() && self.?plain[?5].orValue('z') == 'z'",
        "has(self.tags) && self.steps.exists(s, s.name == 'y' && s.n == 2)",
    ],
)
def test_rule_sees_what_the_schema_says(rule: str) -> None:
    types = SchemaTypes()
    found = types.type_of(SCHEMA, "self")
    assert found is not None
    program = Environment({"self": found}, types.objects).compile(rule)
    assert isinstance(program, Program), str(program)
    assert program.evaluate({"self": value_of(VALUE, SCHEMA)}, 10_000)[0] is True


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("spec", "spec"),
        ("namespace", "__namespace__"),
        ("a-b", "a__dash__b"),
        ("a.b", "a__dot__b"),
        ("a/b", "a__slash__b"),
        ("a__b", "a__underscores__b"),
        ("1a", None),
        ("ä", None),
        ("", None),
    ],
)
def test_names_of_properties_in_expressions(name: str, shown: str | None) -> None:
    assert escaped(name) == shown
