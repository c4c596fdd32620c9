"""Create and update as clients see them: names, versions, generations, dry runs, preconditions, strictness."""

from __future__ import annotations

import asyncio
import copy
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.base.errors import AlreadyExists, ApiProblem, BadRequest, Conflict, Forbidden, Invalid, NotFound
from support.api_world import CONFIGS, DEPLOYMENTS, JSON_PATCH, MERGE, PODS, STRATEGIC, World, config, deployment
from support.manifests import pod


def test_a_created_object_gets_its_system_fields(world: World) -> None:
    answer = world.ask("create", CONFIGS, config("c", a="1"))
    assert answer.code == 201
    metadata = world.get(f"{CONFIGS}/c")["metadata"]
    assert metadata["namespace"] == "ns" and metadata["creationTimestamp"] == "2023-11-14T22:13:20Z"
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", metadata["uid"])
    assert metadata["resourceVersion"] == str(world.store.revision)


def test_clients_cannot_choose_system_fields(world: World) -> None:
    body = config("c")
    body["metadata"] |= {
        "uid": "mine",
        "creationTimestamp": "2001-01-01T00:00:00Z",
        "deletionTimestamp": "2001-01-01T00:00:00Z",
        "generation": 99,
    }
    metadata = world.create(CONFIGS, body)["metadata"]
    assert metadata["uid"] != "mine" and "deletionTimestamp" not in metadata and "generation" not in metadata
    assert metadata["creationTimestamp"] != "2001-01-01T00:00:00Z"


def test_a_taken_name_is_a_conflict(world: World) -> None:
    world.create(CONFIGS, config("c"))
    with pytest.raises(AlreadyExists, match='configmaps "c" already exists'):
        world.create(CONFIGS, config("c"))


def test_generated_names(world: World) -> None:
    body = config()
    body["metadata"] = {"generateName": "x" * 70}
    names = {world.create(CONFIGS, body)["metadata"]["name"] for _ in range(20)}
    assert len(names) == 20
    for name in names:
        assert re.fullmatch(r"x{58}[bcdfghjklmnpqrstvwxz2456789]{5}", name)


def test_generated_names_avoid_those_taken(world: World) -> None:
    """The same random numbers again: the first suffix is taken, so the next one is used."""
    body = config()
    body["metadata"] = {"generateName": "x-"}
    state = world.ctx.rng.getstate()
    first = world.create(CONFIGS, body)["metadata"]["name"]
    world.ctx.rng.setstate(state)
    second = world.create(CONFIGS, body)["metadata"]["name"]
    assert first != second and second.startswith("x-")


def test_a_name_is_needed(world: World) -> None:
    with pytest.raises(Invalid, match=r"metadata.name: Required value: name or generateName is required"):
        world.create(CONFIGS, {"metadata": {}})


@pytest.mark.parametrize(
    ("body", "problem", "text"),
    [
        (
            {**config("c"), "apiVersion": "v2"},
            BadRequest,
            "the API version in the data (v2) does not match the expected API version (v1)",
        ),
        ({**config("c"), "kind": "Secret"}, BadRequest, "cannot be handled as a ConfigMap"),
        (
            {"metadata": {"name": "c", "namespace": "other"}},
            BadRequest,
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        ({"metadata": {"name": "c"}, "data": [1]}, BadRequest, "data"),
        ({"metadata": {"name": "Bad_Name"}}, Invalid, "metadata.name: Invalid value"),
        ({"metadata": {"name": "c", "resourceVersion": "5"}}, ApiProblem, "resourceVersion should not be set"),
        (b"{", BadRequest, ""),
        (b"[]", BadRequest, ""),
        (b"", BadRequest, ""),
        (b"[" * 100_000, BadRequest, "nested"),
        (b'{"data":' + b'{"a":' * 5000 + b"1" + b"}" * 5001, BadRequest, ""),
    ],
)
def test_bad_bodies(world: World, body: Any, problem: Any, text: str) -> None:
    with pytest.raises(problem) as caught:
        world.create(CONFIGS, body)
    assert text in caught.value.message


def test_several_errors_are_reported_at_once(world: World) -> None:
    body = pod("Bad_Name")
    body["spec"]["containers"][0]["name"] = "Also Bad"
    with pytest.raises(Invalid) as caught:
        world.create(PODS, body)
    assert caught.value.message.startswith('Pod "Bad_Name" is invalid: [')
    fields = {cause["field"] for cause in caught.value.causes}
    assert fields == {"metadata.name", "spec.containers[0].name"}
    status = caught.value.status()
    assert status["details"]["kind"] == "Pod" and status["code"] == 422


def test_strict_validation_lists_everything_unknown_or_repeated(world: World) -> None:
    body = b'{"metadata":{"name":"c"},"spce":{},"data":{"a":"1","a":"2"},"x":1}'
    with pytest.raises(BadRequest) as caught:
        world.create(CONFIGS, body, fieldValidation="Strict")
    text = caught.value.message
    assert "strict decoding error: " in text
    for part in ('unknown field "spce"', 'unknown field "x"', 'duplicate field "data.a"'):
        assert part in text
    order = ['unknown field "spce"', 'duplicate field "data.a"', 'unknown field "x"']
    assert text.endswith("strict decoding error: " + ", ".join(order))
    answer = world.ask("create", CONFIGS, body, fieldValidation="Warn")
    assert set(answer.warnings) == {'unknown field "spce"', 'unknown field "x"', 'duplicate field "data.a"'}
    assert "spce" not in world.get(f"{CONFIGS}/c")
    world.delete(f"{CONFIGS}/c")
    assert world.ask("create", CONFIGS, body, fieldValidation="Ignore").warnings == ()


@pytest.mark.parametrize(
    ("key", "value"), [("dryRun", "Some"), ("fieldValidation", "Maybe"), ("fieldManager", "x" * 200)]
)
def test_bad_options(world: World, key: str, value: str) -> None:
    with pytest.raises(Invalid, match=key):
        world.create(CONFIGS, config("c"), **{key: value})


def test_a_dry_run_answers_and_stores_nothing(world: World) -> None:
    before = world.store.revision
    made = world.create(CONFIGS, config("c"), dryRun="All")
    assert made["metadata"]["uid"] and "resourceVersion" not in made["metadata"]
    assert world.get(f"{CONFIGS}/c") is None
    world.create(CONFIGS, config("c"))
    with pytest.raises(AlreadyExists):
        world.create(CONFIGS, config("c"), dryRun="All")
    patched = world.patch(f"{CONFIGS}/c", {"data": {"x": "y"}}, dryRun="All")
    assert patched["data"] == {"x": "y"} and not world.get(f"{CONFIGS}/c").get("data")
    world.delete(f"{CONFIGS}/c", dryRun="All")
    assert world.get(f"{CONFIGS}/c") is not None
    assert world.store.revision == before + 1


def test_nothing_is_created_without_its_namespace(world: World) -> None:
    with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
        world.create("/api/v1/namespaces/nowhere/configmaps", config("c"))


# -- update -------------------------------------------------------------------------------------------------------


def test_a_stale_update_is_refused(world: World) -> None:
    made = world.create(CONFIGS, config("c", a="1"))
    world.patch(f"{CONFIGS}/c", {"data": {"a": "2"}})
    with pytest.raises(Conflict) as caught:
        world.update(f"{CONFIGS}/c", {**made, "data": {"a": "3"}})
    assert caught.value.message == (
        'Operation cannot be fulfilled on configmaps "c": the object has been modified; '
        "please apply your changes to the latest version and try again"
    )


def test_an_update_of_another_incarnation_is_refused(world: World) -> None:
    made = world.create(CONFIGS, config("c"))
    made["metadata"]["uid"] = "somebody-else"
    del made["metadata"]["resourceVersion"]
    with pytest.raises(Conflict, match="Precondition failed: UID in precondition: somebody-else"):
        world.update(f"{CONFIGS}/c", made)


def test_an_update_that_changes_nothing_keeps_the_revision(world: World) -> None:
    made = world.create(DEPLOYMENTS, deployment())
    world.clock.advance(60)
    assert world.update(f"{DEPLOYMENTS}/web", made) == made
    for content, patch in ((MERGE, {"spec": {"replicas": 2}}), (STRATEGIC, {}), (JSON_PATCH, [])):
        assert world.patch(f"{DEPLOYMENTS}/web", patch, content) == made


def test_generation_counts_changes_of_what_was_asked_for(world: World) -> None:
    made = world.create(DEPLOYMENTS, deployment())
    assert made["metadata"]["generation"] == 1
    path = f"{DEPLOYMENTS}/web"
    assert world.patch(path, {"metadata": {"labels": {"a": "b"}}})["metadata"]["generation"] == 1
    assert world.patch(f"{path}/status", {"status": {"replicas": 1}})["metadata"]["generation"] == 1
    assert world.patch(path, {"spec": {"replicas": 7}})["metadata"]["generation"] == 2
    assert world.patch(path, {"status": {"replicas": 99}})["metadata"]["generation"] == 2
    assert world.get(path)["status"]["replicas"] == 1


def test_the_name_in_the_body_must_be_that_of_the_path(world: World) -> None:
    made = world.create(CONFIGS, config("c"))
    made["metadata"]["name"] = "d"
    with pytest.raises(BadRequest, match=r"the name of the object \(d\) does not match the name on the URL \(c\)"):
        world.update(f"{CONFIGS}/c", made)
    del made["metadata"]["name"]
    with pytest.raises(BadRequest, match="name must be provided"):
        world.update(f"{CONFIGS}/c", made)


def test_nothing_is_vouched_for_before_it_is_durable(tmp_path: Path) -> None:
    """A write that changes nothing, right behind one still on its way to the disk, waits for that one."""
    world = World(path=str(tmp_path / "db"))
    world.create(CONFIGS, config("c", a="1"))

    async def race() -> list[int]:
        change = asyncio.ensure_future(
            world.writer.handle(world.request("patch", f"{CONFIGS}/c", {"data": {"a": "2"}}, MERGE))
        )
        await asyncio.sleep(0)  # the change is submitted, not durable
        answer = await world.writer.handle(world.request("patch", f"{CONFIGS}/c", {"data": {"a": "2"}}, MERGE))
        known = world.store.revision
        await change
        return [int(msgspec.json.decode(answer.body)["metadata"]["resourceVersion"]), known]

    announced, durable = world.run(race())
    assert announced <= durable
    world.close()


def test_updating_what_is_not_there(world: World) -> None:
    with pytest.raises(NotFound, match='configmaps "c" not found'):
        world.update(f"{CONFIGS}/c", config("c"))
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}}
    path = "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l"
    assert world.ask("update", path, {**lease, "metadata": {"name": "l"}}).code == 201


def test_kinds_that_demand_a_revision(world: World) -> None:
    path = "/apis/scheduling.k8s.io/v1beta1/namespaces/ns/podgroups"
    made = world.create(path, {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"basic": {}}}})
    del made["metadata"]["resourceVersion"]
    with pytest.raises(Invalid, match="metadata.resourceVersion: Invalid value: 0: must be specified for an update"):
        world.update(f"{path}/g", made)


@pytest.mark.parametrize("revision", ["abc", "-1", "1.5", "²"])
def test_a_revision_that_is_none(world: World, revision: str) -> None:
    made = world.create(CONFIGS, config("c"))
    made["metadata"]["resourceVersion"] = revision
    with pytest.raises(BadRequest, match="resourceVersion"):
        world.update(f"{CONFIGS}/c", made)


def test_status_only_changes_status(world: World) -> None:
    made = world.create(PODS, pod("p"))
    asked = copy.deepcopy(made)
    asked["spec"]["containers"][0]["image"] = "other"
    asked["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]
    asked["status"] = {"phase": "Running"}
    updated = world.update(f"{PODS}/p/status", asked)
    assert updated["status"]["phase"] == "Running"
    assert updated["spec"] == made["spec"] and "ownerReferences" not in updated["metadata"]


def test_versions_of_one_object(world: World) -> None:
    """Written in one version, changed in another: one object."""
    old, new = (f"/apis/scheduling.k8s.io/{v}/namespaces/ns/workloads" for v in ("v1alpha3", "v1beta1"))
    spec = {"podGroupTemplates": [{"name": "w", "schedulingPolicy": {"gang": {"minCount": 2}}}]}
    made = world.create(old, {"metadata": {"name": "w"}, "spec": spec})
    assert made["apiVersion"] == "scheduling.k8s.io/v1alpha3"
    patch = [{"op": "replace", "path": "/spec/podGroupTemplates/0/schedulingPolicy/gang/minCount", "value": 3}]
    patched = world.patch(f"{new}/w", patch, JSON_PATCH)
    assert patched["apiVersion"] == "scheduling.k8s.io/v1beta1"
    assert patched["metadata"]["uid"] == made["metadata"]["uid"]
    assert world.get(f"{old}/w")["apiVersion"] == "scheduling.k8s.io/v1beta1", "stored once, in the storage version"


ALPHA = "/apis/scheduling.k8s.io/v1alpha1/namespaces/ns/workloads"
BETA = "/apis/scheduling.k8s.io/v1beta1/namespaces/ns/workloads"


def old_workload(count: int) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": "w"},
        "spec": {"podGroups": [{"name": "workers", "policy": {"gang": {"minCount": count}}}]},
    }


def test_the_first_version_of_workload_is_a_view_of_the_present_one(world: World) -> None:
    made = world.create(ALPHA, old_workload(4))
    assert made["apiVersion"] == "scheduling.k8s.io/v1alpha1"
    assert made["spec"]["podGroups"][0]["policy"]["gang"]["minCount"] == 4
    stored = world.get(f"{BETA}/w")
    assert stored["spec"]["podGroupTemplates"][0]["schedulingPolicy"] == {"gang": {"minCount": 4}}
    labelled = world.patch(f"{ALPHA}/w", {"metadata": {"labels": {"a": "b"}}})
    assert labelled["spec"] == made["spec"]


def test_the_first_version_of_workload_can_be_applied(world: World) -> None:
    first = world.apply(f"{ALPHA}/w", old_workload(4))
    assert world.apply(f"{ALPHA}/w", old_workload(4)) == first
    with pytest.raises(Conflict):
        body = {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "Workload",
            "spec": {"podGroupTemplates": [{"name": "workers", "schedulingPolicy": {"gang": {"minCount": 5}}}]},
        }
        world.apply(f"{BETA}/w", body, "somebody else")


def test_a_patch_pinned_to_a_revision(world: World) -> None:
    made = world.create(CONFIGS, config("c"))
    revision = made["metadata"]["resourceVersion"]
    world.patch(f"{CONFIGS}/c", {"metadata": {"resourceVersion": revision}, "data": {"a": "1"}})
    with pytest.raises(Conflict):
        world.patch(f"{CONFIGS}/c", {"metadata": {"resourceVersion": revision}, "data": {"a": "2"}})


def test_patches_cannot_break_the_object(world: World) -> None:
    world.create(CONFIGS, config("c"))
    for content, patch in (
        (JSON_PATCH, [{"op": "replace", "path": "", "value": 3}]),
        (JSON_PATCH, [{"op": "remove", "path": ""}]),
        (MERGE, {"metadata": 5}),
        (MERGE, {"metadata": {"name": "d"}}),
        (MERGE, {"kind": "Secret"}),
        (MERGE, {"data": {"a": 1}}),
        (STRATEGIC, {"metadata": "x"}),
    ):
        with pytest.raises(ApiProblem) as caught:
            world.patch(f"{CONFIGS}/c", patch, content)
        assert caught.value.http_code in (400, 422)


def test_removing_the_metadata_by_patch_keeps_the_system_part(world: World) -> None:
    made = world.create(CONFIGS, config("c"))
    patched = world.patch(f"{CONFIGS}/c", {"metadata": None})
    assert patched["metadata"]["uid"] == made["metadata"]["uid"]


def test_unknown_fields_of_a_patch_are_refused_when_strict(world: World) -> None:
    world.create(CONFIGS, config("c"))
    with pytest.raises(BadRequest, match='strict decoding error: unknown field "dtaa"'):
        world.patch(f"{CONFIGS}/c", {"dtaa": {}}, fieldValidation="Strict")
    answer = world.ask("patch", f"{CONFIGS}/c", {"dtaa": {}}, MERGE, fieldValidation="Warn")
    assert answer.warnings == ('unknown field "dtaa"',)


# -- fuzz ---------------------------------------------------------------------------------------------------------

texts = st.sampled_from(["", "a", "Bad Name", "metadata", "1Gi", "x" * 300, "2026-01-01T00:00:00Z", "\x00", "é"])
FIELDS = (
    *("apiVersion", "kind", "metadata", "name", "namespace", "labels", "annotations", "finalizers", "uid", "x"),
    *("ownerReferences", "managedFields", "generateName", "resourceVersion", "spec", "status", "data", "containers"),
    *("image", "replicas", "template", "tolerations", "selector", "conditions", "type", "$patch"),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(FIELDS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)
_WORLD: list[World] = []


def shared() -> World:
    if not _WORLD:
        _WORLD.append(World())
        _WORLD[0].create(PODS, pod("fuzz"))
        _WORLD[0].create(CONFIGS, config("fuzz"))
    return _WORLD[0]


@given(
    st.sampled_from(["create", "update", MERGE, STRATEGIC, JSON_PATCH, "application/apply-patch+yaml"]),
    st.sampled_from([PODS, CONFIGS, DEPLOYMENTS, "/apis/scheduling.k8s.io/v1beta1/namespaces/ns/workloads"]),
    st.sampled_from(["", "/status"]),
    json_values,
)
@settings(max_examples=250, deadline=None)
def test_whatever_comes_in_a_problem_or_an_object_goes_out(how: str, path: str, sub: str, body: Any) -> None:
    world = shared()
    try:
        if how == "create":
            answer = world.ask("create", path, body)
        elif how == "update":
            answer = world.ask("update", f"{path}/fuzz", body)
        else:
            answer = world.ask("patch", f"{path}/fuzz{sub}", body, how, fieldManager="fuzz", force="false")
        assert answer.code in (200, 201)
    except ApiProblem as problem:
        assert problem.http_code in (400, 403, 404, 409, 413, 415, 422) or "resourceVersion" in problem.message


CONTENTS = ["application/json", "application/yaml", "application/vnd.kubernetes.protobuf"]


@given(st.binary(max_size=60), st.sampled_from(CONTENTS))
@settings(max_examples=120, deadline=None)
def test_any_bytes_are_refused_or_understood(body: bytes, content: str) -> None:
    world = shared()
    for verb, path in (("create", PODS), ("delete", f"{PODS}/nothing"), ("create", f"{PODS}/fuzz/binding")):
        with pytest.raises(ApiProblem):
            world.ask(verb, path, body, content)


def test_forbidden_is_not_raised_by_accident(world: World) -> None:
    with pytest.raises(Forbidden, match='pods "p" is forbidden: no PriorityClass with name nope was found'):
        world.create(PODS, pod("p", priorityClassName="nope"))
