"""`x-kubernetes-validations`: rules that custom resources must hold to, and what a definition's rules must be."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phalanx.base.errors import Invalid
from support.api_world import JSON_PATCH, World
from support.crontabs import CRONS, DEFINITION, DEFINITIONS, cron, definition

RULES = "x-kubernetes-validations"


def ruled(rules: Any = (), root: Any = (), **parts: dict[str, Any]) -> dict[str, Any]:
    """A definition of CronTabs with rules for its spec, for the whole object and for parts of the spec."""
    made = definition()
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    spec = schema["properties"]["spec"]
    spec[RULES] = list(rules)
    schema[RULES] = list(root)
    for name, part in parts.items():
        spec["properties"].setdefault(name, {}).update(part)
    return made


def refusal(world: World, body: dict[str, Any]) -> str:
    with pytest.raises(Invalid) as problem:
        world.create(CRONS, body)
    return str(problem.value)


def test_object_that_breaks_a_rule_is_refused_with_its_message(world: World) -> None:
    world.create(
        DEFINITIONS,
        ruled(
            [
                {"rule": "self.replicas <= 5", "message": "at most five"},
                {"rule": "!has(self.policy) || self.replicas < 3"},
                {
                    "rule": "self.image != 'bad'",
                    "messageExpression": "'image ' + self.image + ' is not allowed'",
                    "fieldPath": ".image",
                },
            ]
        ),
    )
    world.create(CRONS, cron(replicas=2))
    assert "spec: Invalid value: at most five" in refusal(world, cron("b", replicas=6))
    text = refusal(world, cron("b", replicas=4, policy="Allow"))
    assert "spec: Invalid value: failed rule: !has(self.policy) || self.replicas < 3" in text
    assert "spec.image: Invalid value: image bad is not allowed" in refusal(world, cron("b", image="bad"))


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("FieldValueForbidden", "spec.replicas: Forbidden: no"),
        ("FieldValueRequired", "spec.replicas: Required value: no"),
        ("FieldValueDuplicate", "spec.replicas: Duplicate value: 7"),
        ("FieldValueInvalid", "spec.replicas: Invalid value: 7: no"),
    ],
)
def test_reason_of_a_rule(world: World, reason: str, text: str) -> None:
    world.create(DEFINITIONS, ruled(replicas={RULES: [{"rule": "self != 7", "message": "no", "reason": reason}]}))
    assert text in refusal(world, cron(replicas=7))


def test_rules_see_lists_maps_formats_and_escaped_names(world: World) -> None:
    extra: dict[str, Any] = {
        "until": {"type": "string", "format": "date-time"},
        "wait": {"type": "string", "format": "duration"},
        "x-y": {"type": "string"},
        "namespace": {"type": "string"},
        "ratio": {"type": "number"},
    }
    made = ruled(
        [
            {"rule": "!has(self.until) || self.until > timestamp('2020-01-01T00:00:00Z')", "message": "too early"},
            {"rule": "!has(self.wait) || self.wait < duration('1h')", "message": "too long"},
            {"rule": "!has(self.x__dash__y) || self.x__dash__y == 'a'", "message": "x-y"},
            {"rule": "!has(self.__namespace__) || self.__namespace__ == 'a'", "message": "namespace"},
            {"rule": "!has(self.namespace) || self.namespace == 'a'", "message": "namespace"},
            {"rule": "!has(self.ratio) || self.ratio <= 1.5", "message": "ratio"},
            {"rule": "!has(self.limits) || self.limits.all(k, self.limits[k] > 0)", "message": "limits"},
            {"rule": "!has(self.steps) || self.steps.exists(s, s.name == 'go')", "message": "steps"},
            {
                "rule": "!has(self.port) || (type(self.port) == int ? self.port > 0 : self.port != '')",
                "message": "port",
            },
        ],
        root=[{"rule": "self.metadata.name.startsWith('a')", "message": "its name begins with a"}],
        **extra,
    )
    world.create(DEFINITIONS, made)
    good = {
        "until": "2021-01-01T00:00:00Z",
        "wait": "5m",
        "x-y": "a",
        "namespace": "a",
        "ratio": 1,
        "limits": {"a": 1},
        "steps": [{"name": "go"}],
        "port": "http",
    }
    world.create(CRONS, cron("a", **good))
    bad: dict[str, Any] = {"until": "2019-01-01T00:00:00Z", "wait": "2h", "x-y": "b", "namespace": "b", "ratio": 2}
    bad |= {"limits": {"a": 0}, "steps": [{"name": "x"}], "port": 0}
    for name, value in bad.items():
        assert "spec: Invalid value: " in refusal(world, cron("ab", **{name: value})), name
    assert "<nil>: Invalid value: its name begins with a" in refusal(world, cron("b"))


def test_transition_rules_compare_with_the_old_value(world: World) -> None:
    world.create(
        DEFINITIONS,
        ruled(
            replicas={RULES: [{"rule": "self >= oldSelf", "message": "never fewer"}]},
            policy={
                RULES: [
                    {
                        "rule": "oldSelf.hasValue() || self == 'Allow'",
                        "optionalOldSelf": True,
                        "message": "begins with Allow",
                    }
                ]
            },
        ),
    )
    assert 'spec.policy: Invalid value: "Forbid": begins with Allow' in refusal(world, cron(policy="Forbid"))
    world.create(CRONS, cron(replicas=3, policy="Allow"))
    world.patch(f"{CRONS}/a", {"spec": {"policy": "Forbid", "replicas": 4}})
    with pytest.raises(Invalid, match="spec.replicas: Invalid value: 3: never fewer"):
        world.patch(f"{CRONS}/a", {"spec": {"replicas": 3}})


def test_items_of_keyed_lists_have_old_values(world: World) -> None:
    steps = definition()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"][
        "steps"
    ]
    steps["items"]["properties"]["run"][RULES] = [{"rule": "self == oldSelf", "message": "run is immutable"}]
    world.create(DEFINITIONS, ruled(steps=steps))
    world.create(CRONS, cron(steps=[{"name": "x", "run": "1"}, {"name": "y", "run": "2"}]))
    world.patch(f"{CRONS}/a", {"spec": {"steps": [{"name": "y", "run": "2"}, {"name": "z", "run": "3"}]}})
    with pytest.raises(Invalid, match=r'spec.steps\[1\].run: Invalid value: "4": run is immutable'):
        world.patch(f"{CRONS}/a", {"spec": {"steps": [{"name": "y", "run": "2"}, {"name": "z", "run": "4"}]}})


def test_rule_about_an_unchanged_value_does_not_refuse_an_update(world: World) -> None:
    world.create(DEFINITIONS, ruled())
    world.create(CRONS, cron(replicas=7))
    rules = [{"rule": "self < 5", "message": "too many"}]
    place = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/replicas/x-kubernetes-validations"
    world.patch(DEFINITION, [{"op": "add", "path": place, "value": rules}], JSON_PATCH)
    world.patch(f"{CRONS}/a", {"spec": {"image": "other"}})
    with pytest.raises(Invalid, match="too many"):
        world.patch(f"{CRONS}/a", {"spec": {"replicas": 8}})


def test_rule_that_fails_at_run_time_refuses(world: World) -> None:
    world.create(
        DEFINITIONS,
        ruled(
            [
                {"rule": "self.policy == 'Allow'"},
                {"rule": "self.port + 1 > 0"},
            ]
        ),
    )
    text = refusal(world, cron(port="http"))
    assert "spec: Invalid value: \"object\": no such key: policy evaluating rule: self.policy == 'Allow'" in text
    assert (
        "'no such overload: _+_': call arguments did not match a supported operator, function or macro signature "
        "for rule: self.port + 1 > 0" in text
    )


def test_rule_that_costs_too_much_at_run_time_refuses(world: World) -> None:
    rule = "self.limits.all(a, self.limits.all(b, self.limits.all(c, a + b + c != 'x')))"
    world.create(DEFINITIONS, ruled([{"rule": f"!has(self.limits) || {rule}"}], limits={"maxProperties": 100}))
    text = refusal(world, cron(limits={f"key-{i}": i for i in range(100)}))
    assert "operation cancelled: actual cost limit exceeded" in text
    assert "no further validation rules will be run due to call cost exceeds limit for rule" in text


def test_rules_are_not_checked_when_the_schema_refuses(world: World) -> None:
    world.create(DEFINITIONS, ruled([{"rule": "self.replicas > 3"}]))
    text = refusal(world, {**cron(), "spec": {"replicas": 1}})
    assert "spec.cron: Required value" in text
    assert "some validation rules were not checked because the object was invalid" in text
    assert "failed rule" not in text


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"rule": "self.nosuch == 1"}, "undefined field 'nosuch'"),
        ({"rule": "self.replicas = 1"}, "Syntax error"),
        ({"rule": "self.replicas"}, "cel expression must evaluate to a bool"),
        ({"rule": " "}, "Required value: rule is not specified"),
        ({"rule": "true", "messageExpression": "1"}, "messageExpression must evaluate to a string"),
        ({"rule": "true", "messageExpression": "nosuch"}, "messageExpression compilation failed"),
        ({"rule": "true", "message": "a\nb"}, "must not contain line breaks"),
        ({"rule": "true ||\n false"}, "message must be specified if rule contains line breaks"),
        ({"rule": "true", "reason": "Nonsense"}, 'Unsupported value: "Nonsense"'),
        ({"rule": "true", "fieldPath": ".nosuch"}, "must be a valid path"),
        ({"rule": "true", "optionalOldSelf": True}, "may not be set if oldSelf is not used in rule"),
        ({"rule": "(" * 20_000}, "expression recursion limit exceeded"),
        ({"rule": "x" * 1_000_000}, "expression code point size exceeds limit"),
    ],
)
def test_definition_with_a_bad_rule_is_refused(world: World, rule: dict[str, Any], text: str) -> None:
    with pytest.raises(Invalid) as problem:
        world.create(DEFINITIONS, ruled([rule]))
    assert text in str(problem.value)
    assert "spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0]" in str(problem.value)


def test_old_values_of_a_list_without_keys_cannot_be_compared(world: World) -> None:
    tags = {"items": {"type": "string", "maxLength": 5, RULES: [{"rule": "self == oldSelf"}]}, "maxItems": 5}
    with pytest.raises(Invalid, match="oldSelf cannot be used on the uncorrelatable portion of the schema within"):
        world.create(DEFINITIONS, ruled(tags=tags))


def test_rule_that_can_cost_too_much_is_refused_with_its_definition(world: World) -> None:
    rule = {"rule": "self.all(s, s == 'string constant')"}
    inner = {"type": "array", "items": {"type": "string"}, RULES: [rule]}
    with pytest.raises(Invalid) as problem:
        world.create(DEFINITIONS, ruled(lists={"type": "array", "items": inner}))
    assert "estimated rule cost exceeds budget by factor of more than 100x (try simplifying the rule, or " in str(
        problem.value
    )
    limited = {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 9}, RULES: [rule]}
    world.create(DEFINITIONS, ruled(lists={"type": "array", "maxItems": 5, "items": limited}))


def test_rules_that_can_cost_too_much_together_are_refused(world: World) -> None:
    part = {"type": "array", "maxItems": 1_500, "items": {"type": "integer"}}
    part[RULES] = [{"rule": f"self.all(x, self.all(y, x + y > {i}))"} for i in range(20)]
    with pytest.raises(Invalid) as problem:
        world.create(DEFINITIONS, ruled(numbers=part))
    text = str(problem.value)
    assert "estimated rule cost total for entire OpenAPIv3 schema exceeds budget by factor of " in text
    assert "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema" in text


def test_a_write_is_validated_by_the_version_it_is_written_in(world: World) -> None:
    made = ruled([{"rule": "self.replicas < 5", "message": "v1 allows four"}])
    old = copy.deepcopy(made["spec"]["versions"][0])
    old |= {"name": "v1beta1", "storage": False}
    old["schema"]["openAPIV3Schema"]["properties"]["spec"][RULES] = [{"rule": "self.replicas < 9", "message": "eight"}]
    made["spec"]["versions"].append(old)
    world.create(DEFINITIONS, made)
    assert "v1 allows four" in refusal(world, cron(replicas=6))
    beta = CRONS.replace("/v1/", "/v1beta1/")
    world.create(beta, {**cron(replicas=6), "apiVersion": "stable.example.com/v1beta1"})
    with pytest.raises(Invalid, match="eight"):
        world.patch(f"{beta}/a", {"spec": {"replicas": 9}})
    world.patch(f"{beta}/a", {"spec": {"replicas": 8}})
    with pytest.raises(Invalid, match="v1 allows four"):
        world.patch(f"{CRONS}/a", {"spec": {"replicas": 7}})


def test_a_field_that_is_null_is_absent_in_rules(world: World) -> None:
    note = {"type": "string", "nullable": True}
    notes = {"type": "object", "additionalProperties": {"type": "string", "nullable": True}}
    rules = [
        {"rule": "!has(self.note)"},
        {"rule": "!has(self.notes) || 'a' in self.notes"},  # a value of a map may be null
    ]
    world.create(DEFINITIONS, ruled(rules, note=note, notes=notes))
    world.create(CRONS, cron(note=None, notes={"a": None}))
    assert "failed rule: !has(self.note)" in refusal(world, cron("b", note="x"))


def test_a_pattern_that_does_not_compile_is_refused_with_the_definition(world: World) -> None:
    with pytest.raises(Invalid) as problem:
        world.create(DEFINITIONS, ruled([{"rule": "self.image.find(')') == ''"}]))
    assert "program instantiation failed: error parsing regexp: unexpected ): `)`" in str(problem.value)


def test_rules_read_all_fields_of_embedded_metadata_that_are_declared(world: World) -> None:
    text = {"type": "string"}
    meta = {"type": "object", "properties": {"name": text, "generateName": text, "namespace": text}}
    body = {"type": "object", "properties": {"kind": text, "apiVersion": text, "metadata": meta}}
    body |= {"x-kubernetes-embedded-resource": True, RULES: [{"rule": "self.metadata.namespace == 'a'"}]}
    world.create(DEFINITIONS, ruled(pod=body))
    embedded = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "p", "namespace": "b"}}
    assert "failed rule: self.metadata.namespace == 'a'" in refusal(world, cron(pod=embedded))


def test_rules_about_an_unchanged_list_without_keys_do_not_refuse_an_update(world: World) -> None:
    item = {"type": "object", "properties": {"host": {"type": "string"}}}
    hosts = {"type": "array", "x-kubernetes-list-type": "atomic", "maxItems": 4, "items": item}
    world.create(DEFINITIONS, ruled(hosts=hosts))
    world.create(CRONS, cron(hosts=[{"host": "old"}]))
    item["properties"]["host"] |= {"maxLength": 9, RULES: [{"rule": "self != 'old'"}]}
    stored = world.get(f"{DEFINITIONS}/{definition()['metadata']['name']}")
    world.patch(f"{DEFINITIONS}/{stored['metadata']['name']}", {"spec": ruled(hosts=hosts)["spec"]})
    world.patch(f"{CRONS}/a", {"spec": {"replicas": 2}})
    with pytest.raises(Invalid, match="failed rule: self != 'old'"):
        world.patch(f"{CRONS}/a", {"spec": {"hosts": [{"host": "old"}, {"host": "b"}]}})
