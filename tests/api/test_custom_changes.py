"""A definition that changes under its objects: new defaults are seen, what a stricter schema would refuse may stay."""

from __future__ import annotations

import copy

import pytest

from phalanx.base.errors import (
    Invalid,
)
from phalanx.local.api.handler import Api
from support.api_world import JSON_PATCH, MERGE, World
from support.crontabs import CRONS, DEFINITION, DEFINITIONS, SCHEMA, cron, definition, properties


def test_a_changed_definition_changes_what_is_served(crons: World) -> None:
    stored = crons.get(DEFINITION)
    second = {**copy.deepcopy(stored["spec"]["versions"][0]), "name": "v2", "storage": False}
    stored["spec"]["versions"].append(second)
    crons.update(DEFINITION, stored)
    crons.create(CRONS, cron())
    other = CRONS.replace("/v1/", "/v2/")
    patched = crons.patch(f"{other}/a", {"spec": {"replicas": 3}})
    assert patched["apiVersion"] == "stable.example.com/v2"
    assert crons.get(f"{CRONS}/a")["apiVersion"] == "stable.example.com/v1"
    stored = crons.get(DEFINITION)
    stored["spec"]["versions"] = [{**stored["spec"]["versions"][1], "storage": True}]
    with pytest.raises(Invalid, match=r"status\.storedVersions\[0\]"):
        crons.update(DEFINITION, stored)


def test_a_default_that_came_later_is_seen_on_old_objects(world: World) -> None:
    world.create(DEFINITIONS, definition())
    world.create(CRONS, {"metadata": {"name": "a"}, "spec": {"cron": "* * * * *"}})
    patch = [{"op": "add", "path": f"{SCHEMA}/properties/zone", "value": {"type": "string", "default": "UTC"}}]
    world.patch(DEFINITION, patch, JSON_PATCH)
    api = Api(world.ctx, world.writer)
    for path in (f"{CRONS}/a", CRONS):
        answer = world.run(api.handle(world.request("get" if path.endswith("/a") else "list", path)))
        assert b'"zone":"UTC"' in answer.whole()


def test_defaults_that_came_later_are_nobodys_change(world: World) -> None:
    world.create(DEFINITIONS, definition())
    world.create(CRONS, {"metadata": {"name": "a"}, "spec": {"cron": "* * * * *"}})
    at = f"{SCHEMA}/properties/zone"
    patch = [{"op": "add", "path": at, "value": {"type": "string", "default": "UTC"}}]
    world.patch(DEFINITION, patch, JSON_PATCH)
    labelled = world.patch(f"{CRONS}/a", {"metadata": {"labels": {"x": "y"}}}, MERGE)
    assert labelled["spec"]["zone"] == "UTC" and labelled["metadata"]["generation"] == 1
    owned = [found["fieldsV1"] for found in labelled["metadata"]["managedFields"]]
    assert not any("f:zone" in str(fields) for fields in owned)


def test_an_object_that_a_stricter_schema_would_refuse_stays_and_its_other_fields_can_change(world: World) -> None:
    world.create(DEFINITIONS, definition())
    world.create(CRONS, {"metadata": {"name": "a"}, "spec": {"cron": "* * * * *", "replicas": 9}})
    maximum = f"{SCHEMA}/properties/replicas/maximum"
    lower = [{"op": "replace", "path": maximum, "value": 5}]
    world.patch(DEFINITION, lower, JSON_PATCH)
    assert world.patch(f"{CRONS}/a", {"spec": {"image": "other"}}, MERGE)["spec"]["replicas"] == 9
    with pytest.raises(Invalid, match="less than or equal to 5"):
        world.patch(f"{CRONS}/a", {"spec": {"replicas": 8}}, MERGE)


def test_a_list_without_keys_that_changed_is_judged_as_a_whole(world: World) -> None:
    body = definition()
    properties(body)["names"] = {"type": "array", "items": {"type": "string"}}
    world.create(DEFINITIONS, body)
    world.create(CRONS, {"metadata": {"name": "a"}, "spec": {"cron": "* * * * *", "names": ["old"]}})
    items = f"{SCHEMA}/properties/names/items"
    strict = [{"op": "add", "path": items + "/enum", "value": ["new"]}]
    world.patch(DEFINITION, strict, JSON_PATCH)
    assert world.patch(f"{CRONS}/a", {"spec": {"image": "other"}}, MERGE)["spec"]["names"] == ["old"]
    with pytest.raises(Invalid, match=r"spec.names\[0\]: Unsupported value"):
        world.patch(f"{CRONS}/a", {"spec": {"names": ["old", "new"]}}, MERGE)


def test_a_value_that_is_wrong_may_stay_but_not_become_another_wrong_one(world: World) -> None:
    body = definition()
    item = {"type": "object", "properties": {"name": {"type": "string"}, "text": {"type": "string"}}}
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    properties(body).update(
        {
            "zone": {"type": "string"},
            "owner": {"type": "string"},
            "parts": {"type": "array", "items": item, **keyed},
        }
    )
    item["required"] = ["name"]
    world.create(DEFINITIONS, body)
    parts = [{"name": "one", "text": "wordy"}, {"name": "two", "text": "wordy"}]
    world.create(CRONS, {"metadata": {"name": "a"}, "spec": {"cron": "* * * * *", "zone": "long", "parts": parts}})
    at = f"{SCHEMA}/properties"
    shorter = [
        {"op": "add", "path": f"{at}/zone/maxLength", "value": 3},
        {"op": "add", "path": f"{at}/parts/items/properties/text/maxLength", "value": 3},
        {"op": "add", "path": f"{SCHEMA}/required", "value": ["owner"]},
    ]
    world.patch(DEFINITION, shorter, JSON_PATCH)
    assert world.patch(f"{CRONS}/a", {"metadata": {"labels": {"x": "y"}}}, MERGE)["spec"]["zone"] == "long"
    with pytest.raises(Invalid, match=r"spec.owner: Required value"):  # the object that lacks it changed
        world.patch(f"{CRONS}/a", {"spec": {"replicas": 2}}, MERGE)
    with pytest.raises(Invalid, match=r"spec.zone: Too long: may not be more than 3 bytes"):
        world.patch(f"{CRONS}/a", {"spec": {"zone": "longer", "owner": "i"}}, MERGE)
    turned = world.patch(f"{CRONS}/a", {"spec": {"owner": "i", "parts": parts[::-1]}}, MERGE)
    assert [part["name"] for part in turned["spec"]["parts"]] == ["two", "one"]  # items are distinguished by name
    with pytest.raises(Invalid, match=r"spec.parts\[0\].text: Too long"):
        world.patch(f"{CRONS}/a", {"spec": {"parts": [{"name": "one", "text": "wordier"}]}}, MERGE)
