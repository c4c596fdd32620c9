"""Objects of custom resources: pruned, defaulted, validated, patched and applied as their definition says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.base.errors import (
    ApiProblem,
    BadRequest,
    Conflict,
    Invalid,
    NotFound,
    UnsupportedMediaType,
)
from phalanx.local.api.structural import validate as schema_errors
from support.api_world import JSON_PATCH, MERGE, STRATEGIC, World
from support.crontabs import CRONS, DEFINITIONS, SPEC, cron, definition, properties
from support.manifests import jobset, leader_worker_set, template


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


def test_whole_floats_are_whole_numbers_and_nulls_that_may_not_stand_go(crons: World) -> None:
    """SDKs send 1.0 for a count of GPUs, and null for every variable they have not set."""
    made = cron(port=80.0, replicas=2.0, limits={"a": 1.0, "b": None}, policy=None, tags=None, free={"n": 3.0})
    spec = crons.create(CRONS, made)["spec"]
    assert (spec["port"], spec["replicas"], spec["limits"], spec["free"]) == (80, 2, {"a": 1}, {"n": 3})
    assert all(isinstance(spec[name], int) for name in ("port", "replicas"))
    assert "policy" not in spec and "tags" not in spec


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


def test_a_put_of_what_is_not_there_is_not_found(world: World) -> None:
    world.create(DEFINITIONS, definition())
    body = {"apiVersion": "stable.example.com/v1", "kind": "CronTab", "metadata": {"name": "none"}, "spec": {}}
    with pytest.raises(NotFound):
        world.update(f"{CRONS}/none", body)


def test_an_object_inside_of_an_object_has_metadata_like_any_other(world: World) -> None:
    body = definition()
    embedded = {"x-kubernetes-embedded-resource": True, "x-kubernetes-preserve-unknown-fields": True}
    properties(body)["template"] = {"type": "object", **embedded}
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


LWS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"
JOB_SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"


def test_kinds_that_are_custom_resources_upstream_take_whole_floats(world: World) -> None:
    """And built-in kinds do not: there kube-apiserver decodes into Go's int32."""
    made = leader_worker_set("a", 2, 3, template("1"), rolloutStrategy={"rollingUpdateConfiguration": {}})
    made["spec"]["replicas"] = 2.0
    made["spec"]["rolloutStrategy"]["rollingUpdateConfiguration"]["maxUnavailable"] = 1.0
    made["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["terminationGracePeriodSeconds"] = 5.0
    spec = world.create(LWS, made)["spec"]
    pod = spec["leaderWorkerTemplate"]["workerTemplate"]["spec"]
    strategy = spec["rolloutStrategy"]["rollingUpdateConfiguration"]
    found = (spec["replicas"], strategy["maxUnavailable"], pod["terminationGracePeriodSeconds"])
    assert json.dumps(found) == "[2, 1, 5]"
    assert json.dumps(world.patch(f"{LWS}/a", {"spec": {"replicas": 4.0}}, MERGE)["spec"]["replicas"]) == "4"
    assert json.dumps(world.apply(f"{LWS}/b", {**made, "metadata": {"name": "b"}}, "me")["spec"]["replicas"]) == "2"
    spec_ = {"parallelism": 2.0, "template": {"spec": {**template("1")["spec"], "restartPolicy": "Never"}}}
    part = {"name": "a", "replicas": 1.0, "template": {"spec": spec_}}
    (part,) = world.create(JOB_SETS, jobset("a", part))["spec"]["replicatedJobs"]
    assert json.dumps([part["replicas"], part["template"]["spec"]["parallelism"]]) == "[1, 2]"
    for wrong in (1.5, 1e30):
        with pytest.raises(BadRequest, match="cannot unmarshal number"):
            world.patch(f"{LWS}/a", {"spec": {"replicas": wrong}}, MERGE)
    with pytest.raises(BadRequest, match="cannot unmarshal number"):
        world.update(f"{LWS}/a/scale", {"metadata": {"name": "a"}, "spec": {"replicas": 1.0}})
    with pytest.raises(BadRequest, match="cannot unmarshal number"):
        world.create("/apis/apps/v1/namespaces/default/deployments", {"spec": {"replicas": 1.0}})
