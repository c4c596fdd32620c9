"""Definitions of custom resources and their objects: served at once, pruned, defaulted, validated, gone together."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from writing import JSON_PATCH, MERGE, STRATEGIC, World

from phalanx.base.errors import (
    ApiProblem,
    BadRequest,
    Conflict,
    Invalid,
    MethodNotAllowed,
    NotFound,
    UnsupportedMediaType,
)
from phalanx.local.api.custom_kind import json_path
from phalanx.local.api.handler import Api
from phalanx.local.api.structural import validate as schema_errors

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRONS = "/apis/stable.example.com/v1/namespaces/ns/crontabs"

SPEC: dict[str, Any] = {
    "type": "object",
    "required": ["cron"],
    "properties": {
        "cron": {"type": "string", "pattern": r"^(\d+|\*)( (\d+|\*)){4}$"},
        "image": {"type": "string", "default": "busybox", "minLength": 1, "maxLength": 20},
        "replicas": {"type": "integer", "minimum": 1, "maximum": 10, "default": 1},
        "policy": {"type": "string", "enum": ["Allow", "Forbid"]},
        "port": {"x-kubernetes-int-or-string": True},
        "note": {"type": "string", "nullable": True},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "limits": {"type": "object", "additionalProperties": {"type": "integer"}},
        "steps": {
            "type": "array",
            "maxItems": 3,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "run": {"type": "string", "default": "true"}},
            },
        },
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "shape": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
        },
    },
}


def definition(**spec: Any) -> dict[str, Any]:
    status = {"type": "object", "properties": {"replicas": {"type": "integer"}, "phase": {"type": "string"}}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {
            "openAPIV3Schema": {"type": "object", "properties": {"spec": copy.deepcopy(SPEC), "status": status}}
        },
        "subresources": {
            "status": {},
            "scale": {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"},
        },
        "additionalPrinterColumns": [{"name": "Cron", "type": "string", "jsonPath": ".spec.cron"}],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "crontabs.stable.example.com"},
        "spec": {
            "group": "stable.example.com",
            "names": {"plural": "crontabs", "kind": "CronTab", "shortNames": ["ct"]},
            "scope": "Namespaced",
            "versions": [version],
            **spec,
        },
    }


def cron(name: str = "a", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "stable.example.com/v1",
        "kind": "CronTab",
        "metadata": {"name": name},
        "spec": {"cron": "* * * * *", **spec},
    }


@pytest.fixture
def crons(world: World) -> World:
    world.create(DEFINITIONS, definition())
    return world


def test_a_definition_is_established_and_served_at_once(world: World) -> None:
    made = world.create(DEFINITIONS, definition())
    conditions = {c["type"]: (c["status"], c["reason"]) for c in made["status"]["conditions"]}
    assert conditions == {"NamesAccepted": ("True", "NoConflicts"), "Established": ("True", "InitialNamesAccepted")}
    assert made["status"]["storedVersions"] == ["v1"]
    assert made["spec"]["names"]["singular"] == "crontab" and made["spec"]["names"]["listKind"] == "CronTabList"
    kind = world.ctx.registry.by_path("stable.example.com", "v1", "crontabs")
    assert kind is not None and kind.short_names == ("ct",) and kind.namespaced
    assert [column.name for column in kind.columns] == ["Name", "Cron"]
    assert kind.columns[1].value(cron(), 0.0) == "* * * * *"


def test_objects_are_defaulted_and_pruned(crons: World) -> None:
    body = cron(unknown=1, free={"any": {"thing": [1]}}, steps=[{"name": "x", "bad": 1}])
    answer = crons.ask("create", CRONS, body)
    assert set(answer.warnings) == {'unknown field "spec.unknown"', 'unknown field "spec.steps[0].bad"'}
    made = crons.get(f"{CRONS}/a")
    assert made["spec"] == {
        "cron": "* * * * *",
        "free": {"any": {"thing": [1]}},
        "steps": [{"name": "x", "run": "true"}],
        "image": "busybox",
        "replicas": 1,
    }
    assert made["metadata"]["generation"] == 1
    with pytest.raises(BadRequest, match='strict decoding error: unknown field "spec.unknown"'):
        crons.create(CRONS, cron("b", unknown=1), fieldValidation="Strict")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({"cron": None}, "spec.cron"),
        ({"cron": "sometimes"}, 'spec.cron: Invalid value: "sometimes": spec.cron in body should match \''),
        (
            {"replicas": 0},
            "spec.replicas: Invalid value: 0: spec.replicas in body should be greater than or equal to 1",
        ),
        ({"replicas": 11}, "should be less than or equal to 10"),
        ({"replicas": "2"}, 'spec.replicas in body must be of type integer: "string"'),
        ({"replicas": True}, 'must be of type integer: "boolean"'),
        ({"policy": "Maybe"}, 'spec.policy: Unsupported value: "Maybe": supported values: "Allow", "Forbid"'),
        ({"image": ""}, "spec.image in body should be at least 1 chars long"),
        ({"image": "x" * 21}, "spec.image: Too long: may not be more than 20 bytes"),
        ({"port": 1.5}, "spec.port"),
        ({"limits": {"a": "b"}}, "spec.limits.a"),
        ({"steps": [{"name": "x"}, {"name": "x"}]}, 'spec.steps[1]: Duplicate value: {"name":"x"}'),
        ({"steps": [{"run": "x"}]}, "spec.steps[0].name: Required value"),
        ({"steps": [{"name": str(i)} for i in range(4)]}, "spec.steps: Too many: 4: must have at most 3 items"),
        ({"tags": ["a", "a"]}, 'spec.tags[1]: Duplicate value: "a"'),
        ({"shape": {"a": "1", "b": "2"}}, "must validate one and only one schema (oneOf). Found 2 valid alternatives"),
        ({"shape": {}}, "Found none valid"),
    ],
)
def test_objects_are_validated(crons: World, spec: Any, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        crons.create(CRONS, cron(**spec))
    assert text in caught.value.message
    assert caught.value.message.startswith('CronTab.stable.example.com "a" is invalid: ')


def test_what_the_schema_allows(crons: World) -> None:
    crons.create(CRONS, cron(port="http", note=None, limits={"a": 1}, tags=["a", "b"], shape={"a": "1"}))
    assert crons.get(f"{CRONS}/a")["spec"]["note"] is None
    assert crons.patch(f"{CRONS}/a", {"spec": {"port": 80}})["spec"]["port"] == 80


def test_a_required_part_is_missed(crons: World) -> None:
    body = cron()
    del body["spec"]["cron"]
    with pytest.raises(Invalid, match=r"spec\.cron: Required value"):
        crons.create(CRONS, body)


def test_patch_languages_of_custom_objects(crons: World) -> None:
    crons.create(CRONS, cron())
    with pytest.raises(UnsupportedMediaType):
        crons.patch(f"{CRONS}/a", {}, STRATEGIC)
    crons.patch(f"{CRONS}/a", {"spec": {"replicas": 2}}, MERGE)
    crons.patch(f"{CRONS}/a", [{"op": "add", "path": "/spec/tags", "value": ["x"]}], JSON_PATCH)
    assert crons.get(f"{CRONS}/a")["spec"]["tags"] == ["x"]


def test_custom_objects_can_be_applied_by_several(crons: World) -> None:
    crons.apply(f"{CRONS}/a", cron(steps=[{"name": "one"}]), "me")
    other = {"apiVersion": "stable.example.com/v1", "kind": "CronTab", "spec": {"steps": [{"name": "two"}]}}
    both = crons.apply(f"{CRONS}/a", other, "you")
    assert sorted(step["name"] for step in both["spec"]["steps"]) == ["one", "two"]
    with pytest.raises(Conflict, match=r"\.spec\.cron"):
        crons.apply(f"{CRONS}/a", {**other, "spec": {"cron": "1 * * * *"}}, "you")


def test_status_and_scale_of_custom_objects(crons: World) -> None:
    made = crons.create(CRONS, {**cron(), "status": {"phase": "Early"}})
    assert "status" not in made
    patched = crons.patch(f"{CRONS}/a/status", {"status": {"phase": "Ready", "replicas": 3}, "spec": {"replicas": 9}})
    assert patched["status"] == {"phase": "Ready", "replicas": 3} and patched["spec"]["replicas"] == 1
    assert patched["metadata"]["generation"] == 1
    scaled = crons.patch(f"{CRONS}/a/scale", {"spec": {"replicas": 4}})
    assert (scaled["spec"]["replicas"], scaled["status"]["replicas"]) == (4, 3)
    assert crons.get(f"{CRONS}/a")["metadata"]["generation"] == 2
    with pytest.raises(Invalid):
        crons.patch(f"{CRONS}/a/scale", {"spec": {"replicas": 40}})


def test_deleting_the_definition_deletes_its_objects(crons: World) -> None:
    crons.create(CRONS, cron("a"))
    held = cron("b")
    held["metadata"]["finalizers"] = ["example.com/mine"]
    crons.create(CRONS, held)
    path = f"{DEFINITIONS}/crontabs.stable.example.com"
    crons.delete(path)
    assert crons.get(f"{CRONS}/a") is None
    assert crons.get(path)["metadata"]["deletionTimestamp"], "it waits for what a finalizer holds"
    with pytest.raises(MethodNotAllowed, match="terminating"):
        crons.create(CRONS, cron("c"))
    crons.patch(f"{CRONS}/b", {"metadata": {"finalizers": None}})
    assert crons.get(path) is None
    assert crons.ctx.registry.by_path("stable.example.com", "v1", "crontabs") is None


def test_names_that_are_taken(crons: World) -> None:
    other = definition()
    other["metadata"]["name"] = "cts.stable.example.com"
    other["spec"]["names"] = {"plural": "cts", "kind": "CronTab", "singular": "other"}
    made = crons.create(DEFINITIONS, other)
    conditions = {c["type"]: (c["status"], c["reason"]) for c in made["status"]["conditions"]}
    assert conditions["NamesAccepted"] == ("False", "KindConflict") and conditions["Established"][0] == "False"
    assert crons.ctx.registry.by_path("stable.example.com", "v1", "cts") is None
    # Once the other one is gone the names are free.
    crons.delete(f"{DEFINITIONS}/crontabs.stable.example.com")
    assert crons.ctx.registry.by_path("stable.example.com", "v1", "cts") is not None


def test_a_kind_of_our_own_stays_ours(world: World) -> None:
    body = definition(group="jobset.x-k8s.io", names={"plural": "jobsets", "kind": "JobSet"})
    body["metadata"]["name"] = "jobsets.jobset.x-k8s.io"
    before = world.ctx.registry.by_path("jobset.x-k8s.io", "v1alpha2", "jobsets")
    answer = world.ask("create", DEFINITIONS, body)
    assert any("built into this server" in text for text in answer.warnings)
    assert world.ctx.registry.by_path("jobset.x-k8s.io", "v1alpha2", "jobsets") is before is not None
    world.delete(f"{DEFINITIONS}/jobsets.jobset.x-k8s.io")
    assert world.ctx.registry.by_path("jobset.x-k8s.io", "v1alpha2", "jobsets") is before


def test_rules_that_are_not_enforced_are_named(world: World) -> None:
    body = definition()
    schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    schema["x-kubernetes-validations"] = [{"rule": "self.replicas < 5", "message": "no"}]
    answer = world.ask("create", DEFINITIONS, body)
    assert answer.code == 201 and "not enforced" in answer.warnings[0]
    stored = world.get(f"{DEFINITIONS}/crontabs.stable.example.com")
    assert "x-kubernetes-validations" in str(stored)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"scope": "Everywhere"}, "spec.scope: Unsupported value"),
        ({"group": "nodots"}, "spec.group"),
        ({"versions": []}, "spec.versions: Required value"),
        ({"names": {"plural": "CronTabs", "kind": "CronTab"}}, "spec.names.plural"),
        ({"names": {"plural": "others", "kind": "CronTab"}}, "must be spec.names.plural"),
    ],
)
def test_bad_definitions(world: World, change: Any, text: str) -> None:
    with pytest.raises(Invalid) as caught:
        world.create(DEFINITIONS, definition(**change))
    assert text in caught.value.message


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({}, "type: Required value: must not be empty for specified object fields"),
        ({"type": "thing"}, 'Unsupported value: "thing"'),
        ({"type": "array"}, "items: Required value"),
        ({"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "map"}, "x-kubernetes-list-map-keys"),
        ({"type": "string", "pattern": "("}, "must be a valid regular expression"),
        ({"type": "object", "properties": {"a": {"type": "string"}}, "additionalProperties": True}, "mutual exclusive"),
        ({"type": "object", "anyOf": [{"type": "string"}]}, "must be empty to be structural"),
    ],
)
def test_schemas_must_be_structural(world: World, part: Any, text: str) -> None:
    body = definition()
    body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["extra"] = part
    with pytest.raises(Invalid) as caught:
        world.create(DEFINITIONS, body)
    assert text in caught.value.message


def test_a_changed_definition_changes_what_is_served(crons: World) -> None:
    path = f"{DEFINITIONS}/crontabs.stable.example.com"
    stored = crons.get(path)
    second = {**copy.deepcopy(stored["spec"]["versions"][0]), "name": "v2", "storage": False}
    stored["spec"]["versions"].append(second)
    crons.update(path, stored)
    crons.create(CRONS, cron())
    other = CRONS.replace("/v1/", "/v2/")
    patched = crons.patch(f"{other}/a", {"spec": {"replicas": 3}})
    assert patched["apiVersion"] == "stable.example.com/v2"
    assert crons.get(f"{CRONS}/a")["apiVersion"] == "stable.example.com/v1"
    stored = crons.get(path)
    stored["spec"]["versions"] = [{**stored["spec"]["versions"][1], "storage": True}]
    with pytest.raises(Invalid, match=r"status\.storedVersions\[0\]"):
        crons.update(path, stored)


def test_definitions_are_served_again_after_a_restart(tmp_path: Path) -> None:
    first = World(path=str(tmp_path / "db"))
    first.create(DEFINITIONS, definition())
    first.create(CRONS, cron())
    first.close()
    second = World(path=str(tmp_path / "db"))
    assert second.get(f"{CRONS}/a")["spec"]["image"] == "busybox"
    second.patch(f"{CRONS}/a", {"spec": {"replicas": 2}})
    second.close()


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (".a.b", [1]),
        ("{.a.b}", [1]),
        (".items[0].n", ["x"]),
        (".items[*].n", ["x", "y"]),
        ('.items[?(@.n=="y")].v', [2]),
        (".dotted\\.key", ["d"]),
        ("['dotted.key']", ["d"]),
        (".nothing.here", []),
        (".items[9]", []),
        (".items[", []),
    ],
)
def test_paths_of_printer_columns(path: str, found: list[Any]) -> None:
    obj = {"a": {"b": 1}, "items": [{"n": "x", "v": 1}, {"n": "y", "v": 2}], "dotted.key": "d"}
    assert json_path(path)(obj) == found


def test_a_default_must_fit_its_schema(world: World) -> None:
    body = definition()
    body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["replicas"][
        "default"
    ] = 0
    with pytest.raises(Invalid, match="default in body should be greater than or equal to 1"):
        world.create(DEFINITIONS, body)


anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from([*SPEC["properties"], "name", "run", "a", "metadata"]), inner, max_size=4)
    ),
    max_leaves=12,
)
_SHARED: list[World] = []


@given(st.sampled_from(["create", "update", MERGE, "application/apply-patch+yaml"]), anything, anything)
@settings(max_examples=200, deadline=None)
def test_whatever_comes_in_as_a_custom_object(how: str, spec: Any, status: Any) -> None:
    if not _SHARED:
        _SHARED.append(World())
        _SHARED[0].create(DEFINITIONS, definition())
        _SHARED[0].create(CRONS, cron("fuzz"))
    world = _SHARED[0]
    body = {**cron("fuzz"), "spec": spec, "status": status}
    try:
        if how == "create":
            world.ask("create", CRONS, {**body, "metadata": {"generateName": "f-"}})
        elif how == "update":
            current = world.get(f"{CRONS}/fuzz")["metadata"]
            world.ask("update", f"{CRONS}/fuzz", {**body, "metadata": current})
        else:
            world.ask("patch", f"{CRONS}/fuzz", body, how, fieldManager="f")
    except ApiProblem as problem:
        assert problem.http_code in (400, 409, 422)
    stored = world.get(f"{CRONS}/fuzz")
    if "spec" in stored:  # the definition does not demand one
        assert not schema_errors(stored["spec"], SPEC, "spec"), "what is stored fits its schema"


def test_any_definition_is_served_or_refused(world: World) -> None:
    for part in (None, [], 5, "x", {"properties": 5}, {"items": [1]}, {"required": "x"}, {"enum": 3}, {"type": ["a"]}):
        body = definition()
        body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = part
        with pytest.raises(ApiProblem):
            world.create(DEFINITIONS, body)


def test_a_default_that_came_later_is_seen_on_old_objects(world: World) -> None:
    world.create(DEFINITIONS, definition())
    world.create(CRONS, {"metadata": {"name": "a"}, "spec": {"cron": "* * * * *"}})
    patch = [
        {
            "op": "add",
            "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/zone",
            "value": {"type": "string", "default": "UTC"},
        }
    ]
    world.patch(f"{DEFINITIONS}/crontabs.stable.example.com", patch, JSON_PATCH)
    api = Api(world.ctx, world.writer)
    for path in (f"{CRONS}/a", CRONS):
        answer = world.run(api.handle(world.request("get" if path.endswith("/a") else "list", path)))
        assert b'"zone":"UTC"' in answer.whole()


def test_what_a_stricter_schema_would_refuse_stays_as_it_is_and_can_be_changed_elsewhere(world: World) -> None:
    world.create(DEFINITIONS, definition())
    world.create(CRONS, {"metadata": {"name": "a"}, "spec": {"cron": "* * * * *", "replicas": 9}})
    maximum = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/replicas/maximum"
    lower = [{"op": "replace", "path": maximum, "value": 5}]
    world.patch(f"{DEFINITIONS}/crontabs.stable.example.com", lower, JSON_PATCH)
    assert world.patch(f"{CRONS}/a", {"spec": {"image": "other"}}, MERGE)["spec"]["replicas"] == 9
    with pytest.raises(Invalid, match="less than or equal to 5"):
        world.patch(f"{CRONS}/a", {"spec": {"replicas": 8}}, MERGE)


def test_a_list_without_keys_that_changed_is_judged_as_a_whole(world: World) -> None:
    body = definition()
    listed = {"type": "array", "items": {"type": "string"}}
    properties = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    properties["names"] = listed
    world.create(DEFINITIONS, body)
    world.create(CRONS, {"metadata": {"name": "a"}, "spec": {"cron": "* * * * *", "names": ["old"]}})
    items = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/names/items"
    strict = [{"op": "add", "path": items + "/enum", "value": ["new"]}]
    world.patch(f"{DEFINITIONS}/crontabs.stable.example.com", strict, JSON_PATCH)
    assert world.patch(f"{CRONS}/a", {"spec": {"image": "other"}}, MERGE)["spec"]["names"] == ["old"]
    with pytest.raises(Invalid, match=r"spec.names\[0\]: Unsupported value"):
        world.patch(f"{CRONS}/a", {"spec": {"names": ["old", "new"]}}, MERGE)


def test_a_put_of_what_is_not_there_is_not_found(world: World) -> None:
    world.create(DEFINITIONS, definition())
    body = {"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": "none"}, "spec": {}}
    with pytest.raises(NotFound):
        world.update(f"{CRONS}/none", body)


def test_a_value_that_is_wrong_may_stay_but_not_become_another_wrong_one(world: World) -> None:
    body = definition()
    properties = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    item = {"type": "object", "properties": {"name": {"type": "string"}, "text": {"type": "string"}}}
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    properties |= {
        "zone": {"type": "string"},
        "owner": {"type": "string"},
        "parts": {"type": "array", "items": item, **keyed},
    }
    item["required"] = ["name"]
    world.create(DEFINITIONS, body)
    parts = [{"name": "one", "text": "wordy"}, {"name": "two", "text": "wordy"}]
    world.create(CRONS, {"metadata": {"name": "a"}, "spec": {"cron": "* * * * *", "zone": "long", "parts": parts}})
    at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties"
    shorter = [
        {"op": "add", "path": f"{at}/zone/maxLength", "value": 3},
        {"op": "add", "path": f"{at}/parts/items/properties/text/maxLength", "value": 3},
        {"op": "add", "path": "/spec/versions/0/schema/openAPIV3Schema/properties/spec/required", "value": ["owner"]},
    ]
    world.patch(f"{DEFINITIONS}/crontabs.stable.example.com", shorter, JSON_PATCH)
    assert world.patch(f"{CRONS}/a", {"metadata": {"labels": {"x": "y"}}}, MERGE)["spec"]["zone"] == "long"
    with pytest.raises(Invalid, match=r"spec.owner: Required value"):  # the object that lacks it changed
        world.patch(f"{CRONS}/a", {"spec": {"replicas": 2}}, MERGE)
    with pytest.raises(Invalid, match=r"spec.zone: Too long: may not be more than 3 bytes"):
        world.patch(f"{CRONS}/a", {"spec": {"zone": "longer", "owner": "i"}}, MERGE)
    turned = world.patch(f"{CRONS}/a", {"spec": {"owner": "i", "parts": parts[::-1]}}, MERGE)
    assert [part["name"] for part in turned["spec"]["parts"]] == ["two", "one"]  # items are told apart by name
    with pytest.raises(Invalid, match=r"spec.parts\[0\].text: Too long"):
        world.patch(f"{CRONS}/a", {"spec": {"parts": [{"name": "one", "text": "wordier"}]}}, MERGE)


def test_defaults_that_came_later_are_nobodys_change(world: World) -> None:
    world.create(DEFINITIONS, definition())
    world.create(CRONS, {"metadata": {"name": "a"}, "spec": {"cron": "* * * * *"}})
    at = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/zone"
    patch = [{"op": "add", "path": at, "value": {"type": "string", "default": "UTC"}}]
    world.patch(f"{DEFINITIONS}/crontabs.stable.example.com", patch, JSON_PATCH)
    labelled = world.patch(f"{CRONS}/a", {"metadata": {"labels": {"x": "y"}}}, MERGE)
    assert labelled["spec"]["zone"] == "UTC" and labelled["metadata"]["generation"] == 1
    owned = [found["fieldsV1"] for found in labelled["metadata"]["managedFields"]]
    assert not any("f:zone" in str(fields) for fields in owned)


def test_an_object_inside_of_an_object_has_metadata_like_any_other(world: World) -> None:
    body = definition()
    properties = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    properties["template"] = {"type": "object", "x-kubernetes-embedded-resource": True}
    properties["template"]["x-kubernetes-preserve-unknown-fields"] = True
    world.create(DEFINITIONS, body)
    inner = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "n", "namespace": "m", "nonsense": 1}}
    cron_tab = {"metadata": {"name": "a"}, "spec": {"cron": "* * * * *", "template": inner}}
    with pytest.raises(BadRequest, match='unknown field "spec.template.metadata.nonsense"'):
        world.create(CRONS, cron_tab, fieldValidation="Strict")
    made = world.create(CRONS, cron_tab)
    assert made["spec"]["template"]["metadata"] == {"name": "n", "namespace": "m"}
    nameless = {"metadata": {"name": "b"}, "spec": {"cron": "* * * * *", "template": {"metadata": {"name": "n"}}}}
    with pytest.raises(Invalid, match="spec.template.apiVersion: Required value: must not be empty"):
        world.create(CRONS, nameless)
