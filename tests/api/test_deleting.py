"""Delete as clients see it: grace, finalizers, preconditions, propagation, collections, namespaces."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phalanx.base.errors import BadRequest, Conflict, Forbidden, Invalid, NotFound
from support.api_world import CONFIGS, PODS, World, config
from support.manifests import pod

GRACE_0 = {"gracePeriodSeconds": 0}


def bound(world: World, name: str = "p", **spec: Any) -> None:
    world.create(PODS, pod(name, **spec))
    world.create(f"{PODS}/{name}/binding", {"target": {"kind": "Node", "name": "n"}})


def test_a_delete_answers_with_the_uid_of_what_went(world: World) -> None:
    uid = world.create(CONFIGS, config("c"))["metadata"]["uid"]
    assert world.delete(f"{CONFIGS}/c") == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": "c", "kind": "configmaps", "uid": uid},
    }
    with pytest.raises(NotFound, match='configmaps "c" not found'):
        world.delete(f"{CONFIGS}/c")


def test_the_last_state_of_a_deleted_object_has_the_revision_of_the_deletion(world: World) -> None:
    world.create(PODS, pod("p"))
    gone = world.delete(f"{PODS}/p")
    assert gone["kind"] == "Pod"
    assert gone["metadata"]["resourceVersion"] == str(world.store.revision)


def test_a_running_pod_stays_terminating_until_its_kubelet_says_so(world: World) -> None:
    bound(world, terminationGracePeriodSeconds=7)
    gone = world.delete(f"{PODS}/p")
    assert gone["metadata"]["deletionGracePeriodSeconds"] == 7
    assert gone["metadata"]["deletionTimestamp"] == "2023-11-14T22:13:27Z"
    assert world.delete(f"{PODS}/p")["metadata"] == gone["metadata"], "a second delete changes nothing"
    world.delete(f"{PODS}/p", GRACE_0)
    assert world.get(f"{PODS}/p") is None


def test_a_second_delete_can_only_shorten_the_grace_period(world: World) -> None:
    bound(world)
    world.delete(f"{PODS}/p")
    assert world.delete(f"{PODS}/p", {"gracePeriodSeconds": 5})["metadata"]["deletionGracePeriodSeconds"] == 5
    assert world.delete(f"{PODS}/p", {"gracePeriodSeconds": 50})["metadata"]["deletionGracePeriodSeconds"] == 5


def test_pods_that_run_nothing_go_at_once(world: World) -> None:
    world.create(PODS, pod("unbound"))
    world.delete(f"{PODS}/unbound")
    assert world.get(f"{PODS}/unbound") is None
    bound(world, "done")
    world.patch(f"{PODS}/done/status", {"status": {"phase": "Succeeded"}})
    world.delete(f"{PODS}/done")
    assert world.get(f"{PODS}/done") is None


def test_a_pod_without_grace_goes_at_once(world: World) -> None:
    bound(world, terminationGracePeriodSeconds=0)
    world.delete(f"{PODS}/p")
    assert world.get(f"{PODS}/p") is None


@pytest.mark.parametrize("case", ["unbound", "forced", "ended", "no grace", "its kubelet's delete"])
def test_a_watch_sees_every_pod_terminating_before_it_is_gone(world: World, case: str) -> None:
    """kube-apiserver stores deletionTimestamp first, whatever the grace period; controllers rely on it."""
    if case == "unbound":
        world.create(PODS, pod("p"))
    else:
        bound(world, terminationGracePeriodSeconds=0 if case == "no grace" else 7)
    if case == "ended":
        world.patch(f"{PODS}/p/status", {"status": {"phase": "Succeeded"}})
    if case == "its kubelet's delete":
        world.delete(f"{PODS}/p")
    before = world.store.revision
    world.delete(f"{PODS}/p", GRACE_0 if case in ("forced", "its kubelet's delete") else b"")
    modified, gone = world.changes("pods", since=before)
    assert not modified.deleted and gone.deleted
    for change in (modified, gone):
        metadata = json.loads(change.entry.value)["metadata"]
        assert metadata["deletionGracePeriodSeconds"] == 0 and metadata["deletionTimestamp"]


def test_finalizers_hold_an_object_until_the_last_is_removed(world: World) -> None:
    body = config("c")
    body["metadata"]["finalizers"] = ["example.com/a", "example.com/b"]
    world.create(CONFIGS, body)
    held = world.delete(f"{CONFIGS}/c")
    assert held["kind"] == "ConfigMap" and held["metadata"]["deletionTimestamp"]
    with pytest.raises(Invalid, match="no new finalizers can be added if the object is being deleted"):
        world.patch(f"{CONFIGS}/c", {"metadata": {"finalizers": ["example.com/a", "example.com/c"]}})
    world.patch(f"{CONFIGS}/c", {"metadata": {"finalizers": ["example.com/a"]}})
    assert world.get(f"{CONFIGS}/c") is not None
    world.patch(f"{CONFIGS}/c", {"metadata": {"finalizers": None}})
    assert world.get(f"{CONFIGS}/c") is None


def test_a_pod_with_a_finalizer_waits_for_both_kubelet_and_finalizer(world: World) -> None:
    body = pod("p")
    body["metadata"]["finalizers"] = ["example.com/a"]
    world.create(PODS, body)
    world.create(f"{PODS}/p/binding", {"target": {"name": "n"}})
    world.delete(f"{PODS}/p")
    world.patch(f"{PODS}/p", {"metadata": {"finalizers": None}})
    assert world.get(f"{PODS}/p") is not None, "the kubelet has not finished"
    world.delete(f"{PODS}/p", GRACE_0)
    assert world.get(f"{PODS}/p") is None


def test_the_kubelet_first_and_the_finalizer_later(world: World) -> None:
    body = pod("p")
    body["metadata"]["finalizers"] = ["example.com/a"]
    world.create(PODS, body)
    world.create(f"{PODS}/p/binding", {"target": {"name": "n"}})
    world.delete(f"{PODS}/p")
    world.delete(f"{PODS}/p", GRACE_0)
    assert world.get(f"{PODS}/p")["metadata"]["deletionGracePeriodSeconds"] == 0
    world.patch(f"{PODS}/p", {"metadata": {"finalizers": []}})
    assert world.get(f"{PODS}/p") is None


@pytest.mark.parametrize(
    ("policy", "finalizers"), [("Foreground", ["foregroundDeletion"]), ("Orphan", ["orphan"]), ("Background", None)]
)
def test_propagation_is_left_to_the_collector(world: World, policy: str, finalizers: list[str] | None) -> None:
    world.create(CONFIGS, config("c"))
    world.delete(f"{CONFIGS}/c", {"propagationPolicy": policy})
    left = world.get(f"{CONFIGS}/c")
    assert (left["metadata"]["finalizers"] if left else None) == finalizers


def test_pods_of_a_replication_controller_stay_unless_the_client_says_otherwise(world: World) -> None:
    path = "/api/v1/namespaces/default/replicationcontrollers"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    for name, announced, finalizers in (("x", {}, ["orphan"]), ("y", {"propagationPolicy": "Background"}, None)):
        world.create(
            path, {"metadata": {"name": name, "finalizers": ["example.com/a"]}, "spec": {"template": template}}
        )
        world.delete(f"{path}/{name}", **announced)
        found = world.get(f"{path}/{name}")["metadata"]["finalizers"]
        assert found == ["example.com/a", *(finalizers or [])]


def test_pods_of_a_job_stay_unless_the_client_says_otherwise_and_it_is_warned(world: World) -> None:
    path = "/apis/batch/v1/namespaces/default/jobs"
    spec = {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}
    for verb in ("delete", "deletecollection"):
        for announced, finalizers in (({}, ["orphan"]), ({"propagationPolicy": "Background"}, [])):
            world.create(path, {"metadata": {"name": "j", "finalizers": ["example.com/a"]}, "spec": spec})
            answer = world.ask(verb, f"{path}/j" if verb == "delete" else path, **announced)
            assert world.get(f"{path}/j")["metadata"]["finalizers"] == ["example.com/a", *finalizers]
            assert [text[:24] for text in answer.warnings] == ["child pods are preserved"] * bool(finalizers)
            world.patch(f"{path}/j", {"metadata": {"finalizers": []}})


def test_the_old_way_to_orphan(world: World) -> None:
    world.create(CONFIGS, config("c"))
    world.delete(f"{CONFIGS}/c", orphanDependents="true")
    assert world.get(f"{CONFIGS}/c")["metadata"]["finalizers"] == ["orphan"]


def test_preconditions(world: World) -> None:
    world.create(CONFIGS, config("c"))
    with pytest.raises(Conflict, match="does not match the UID in record"):
        world.delete(f"{CONFIGS}/c", {"preconditions": {"uid": "other"}})
    with pytest.raises(Conflict, match="does not match the ResourceVersion in record"):
        world.delete(f"{CONFIGS}/c", {"preconditions": {"resourceVersion": "1"}})
    metadata = world.get(f"{CONFIGS}/c")["metadata"]
    world.delete(f"{CONFIGS}/c", {"preconditions": {key: metadata[key] for key in ("uid", "resourceVersion")}})


@pytest.mark.parametrize(
    ("body", "query", "problem"),
    [
        ({"propagationPolicy": "Sideways"}, {}, Invalid),
        ({"dryRun": ["Some"]}, {}, Invalid),
        ({"propagationPolicy": "Orphan", "orphanDependents": True}, {}, Invalid),
        ({"kind": "Pod"}, {}, BadRequest),
        ({"gracePeriodSeconds": "soon"}, {}, BadRequest),
        (b"{", {}, BadRequest),
        (b"", {"gracePeriodSeconds": "soon"}, BadRequest),
        (b"", {"gracePeriodSeconds": "9223372036854775807"}, Invalid),
        (b"", {"gracePeriodSeconds": "9" * 5000}, BadRequest),
        ({"gracePeriodSeconds": 9223372036854775807}, {}, Invalid),
        ({"gracePeriodSeconds": -9223372036854775808}, {}, Invalid),
    ],
)
def test_bad_delete_options(world: World, body: Any, query: dict[str, str], problem: Any) -> None:
    world.create(CONFIGS, config("c"))
    with pytest.raises(problem):
        world.delete(f"{CONFIGS}/c", body, **query)
    assert world.get(f"{CONFIGS}/c") is not None


def test_a_pod_with_an_enormous_grace_period_is_deleted(world: World) -> None:
    bound(world, terminationGracePeriodSeconds=9223372036854775807)
    gone = world.delete(f"{PODS}/p")
    assert gone["metadata"]["deletionTimestamp"] == "9999-12-31T23:59:59Z"
    world.delete(f"{PODS}/p", GRACE_0)
    assert world.get(f"{PODS}/p") is None


def test_a_collection_is_deleted_by_selector(world: World) -> None:
    for i in range(4):
        body = config(f"c{i}")
        body["metadata"]["labels"] = {"odd": str(i % 2)}
        world.create(CONFIGS, body)
    gone = world._object("deletecollection", CONFIGS, b"", labelSelector="odd=1")
    assert gone["kind"] == "ConfigMapList"
    assert [item["metadata"]["name"] for item in gone["items"]] == ["c1", "c3"]
    assert [entry.key[2] for entry in world.store.list("configmaps", "ns")] == ["c0", "c2"]


def test_generation_moves_when_deletion_begins(world: World) -> None:
    bound(world)
    before = world.get(f"{PODS}/p")["metadata"]["generation"]
    assert world.delete(f"{PODS}/p")["metadata"]["generation"] == before + 1


# -- namespaces ---------------------------------------------------------------------------------------------------


def test_a_namespace_terminates_until_it_is_finalized(world: World) -> None:
    path = "/api/v1/namespaces"
    world.create(path, {"metadata": {"name": "team"}})
    gone = world.delete(f"{path}/team")
    assert gone["status"]["phase"] == "Terminating" and gone["metadata"]["deletionTimestamp"]
    with pytest.raises(Forbidden) as caught:
        world.create(f"{path}/team/configmaps", config("c"))
    assert caught.value.message == (
        'configmaps "c" is forbidden: unable to create new content in namespace team because it is being terminated'
    )
    assert caught.value.causes[0]["reason"] == "NamespaceTerminating"
    assert world.get(f"{path}/team")["spec"]["finalizers"] == ["kubernetes"]
    gone["spec"]["finalizers"] = []
    world.update(f"{path}/team/finalize", gone)
    assert world.get(f"{path}/team") is None


@pytest.mark.parametrize("name", ["default", "kube-system"])
def test_some_namespaces_may_not_be_deleted(world: World, name: str) -> None:
    with pytest.raises(Forbidden, match=f'namespaces "{name}" is forbidden: this namespace may not be deleted'):
        world.delete(f"/api/v1/namespaces/{name}")
