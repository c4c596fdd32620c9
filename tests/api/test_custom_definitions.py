"""Definitions of custom resources: served at once or refused with the reason, and gone together with their objects."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phalanx.base.errors import (
    ApiProblem,
    Invalid,
    MethodNotAllowed,
)
from phalanx.local.api.custom_kind import json_path
from support.api_world import World
from support.crontabs import CRONS, DEFINITION, DEFINITIONS, cron, definition, properties


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


def test_names_that_are_taken(crons: World) -> None:
    other = definition()
    other["metadata"]["name"] = "cts.stable.example.com"
    other["spec"]["names"] = {"plural": "cts", "kind": "CronTab", "singular": "other"}
    made = crons.create(DEFINITIONS, other)
    conditions = {c["type"]: (c["status"], c["reason"]) for c in made["status"]["conditions"]}
    assert conditions["NamesAccepted"] == ("False", "KindConflict") and conditions["Established"][0] == "False"
    assert crons.ctx.registry.by_path("stable.example.com", "v1", "cts") is None
    # Once the other one is gone the names are free.
    crons.delete(DEFINITION)
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


def test_a_default_must_fit_its_schema(world: World) -> None:
    body = definition()
    properties(body)["replicas"]["default"] = 0
    with pytest.raises(Invalid, match="default in body should be greater than or equal to 1"):
        world.create(DEFINITIONS, body)


def test_any_definition_is_served_or_refused(world: World) -> None:
    for part in (None, [], 5, "x", {"properties": 5}, {"items": [1]}, {"required": "x"}, {"enum": 3}, {"type": ["a"]}):
        body = definition()
        body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = part
        with pytest.raises(ApiProblem):
            world.create(DEFINITIONS, body)


def test_definitions_are_served_again_after_a_restart(tmp_path: Path) -> None:
    first = World(path=str(tmp_path / "db"))
    first.create(DEFINITIONS, definition())
    first.create(CRONS, cron())
    first.close()
    second = World(path=str(tmp_path / "db"))
    assert second.get(f"{CRONS}/a")["spec"]["image"] == "busybox"
    second.patch(f"{CRONS}/a", {"spec": {"replicas": 2}})
    second.close()


def test_deleting_the_definition_deletes_its_objects(crons: World) -> None:
    crons.create(CRONS, cron("a"))
    held = cron("b")
    held["metadata"]["finalizers"] = ["example.com/mine"]
    crons.create(CRONS, held)
    crons.delete(DEFINITION)
    assert crons.get(f"{CRONS}/a") is None
    assert crons.get(DEFINITION)["metadata"]["deletionTimestamp"], "it waits for what a finalizer holds"
    with pytest.raises(MethodNotAllowed, match="terminating"):
        crons.create(CRONS, cron("c"))
    crons.patch(f"{CRONS}/b", {"metadata": {"finalizers": None}})
    assert crons.get(DEFINITION) is None
    assert crons.ctx.registry.by_path("stable.example.com", "v1", "crontabs") is None


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
