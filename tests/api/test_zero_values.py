"""What Go programs always write and other programs rely on: status from the start, zeros and null times in it."""

from __future__ import annotations

from typing import Any

import pytest

from support.api_world import JSON_PATCH, World, deployment

Json = dict[str, Any]
APPS = "/apis/apps/v1/namespaces/ns"
POD = {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}
EVENTS = "/api/v1/namespaces/ns/events"


def daemon_set() -> Json:
    body = deployment("d", None)
    return {**body, "kind": "DaemonSet"}


CASES: list[tuple[str, Json, Json]] = [
    (f"{APPS}/deployments", deployment(), {}),
    (f"{APPS}/replicasets", {**deployment(), "kind": "ReplicaSet"}, {"replicas": 0}),
    (f"{APPS}/statefulsets", {**deployment(), "kind": "StatefulSet"}, {"replicas": 0, "availableReplicas": 0}),
    (
        f"{APPS}/daemonsets",
        daemon_set(),
        {"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0},
    ),
    (
        "/apis/policy/v1/namespaces/ns/poddisruptionbudgets",
        {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "p"}, "spec": {}},
        {"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0},
    ),
    (
        "/api/v1/namespaces/ns/services",
        {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}},
        {"loadBalancer": {}},
    ),
    (
        "/apis/scheduling.k8s.io/v1beta1/namespaces/ns/podgroups",
        {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}},
        {},
    ),
]


@pytest.mark.parametrize(("path", "body", "status"), CASES, ids=[path.rpartition("/")[2] for path, _, _ in CASES])
def test_a_new_object_has_a_status_with_the_zeros_of_its_kind(
    world: World, path: str, body: Json, status: Json
) -> None:
    assert world.create(path, body)["status"] == status


def test_a_json_patch_below_status_needs_no_status_before(world: World) -> None:
    world.create(f"{APPS}/deployments", deployment())
    patch = [{"op": "add", "path": "/status/replicas", "value": 3}]
    assert world.patch(f"{APPS}/deployments/web/status", patch, JSON_PATCH)["status"] == {"replicas": 3}


def test_a_status_written_without_its_zeros_gets_them(world: World) -> None:
    world.create(f"{APPS}/replicasets", {**deployment(), "kind": "ReplicaSet"})
    answer = world.patch(f"{APPS}/replicasets/web/status", {"status": {"replicas": None, "observedGeneration": 1}})
    assert answer["status"] == {"replicas": 0, "observedGeneration": 1}


def test_a_custom_resource_of_upstream_has_no_status_of_its_own(world: World) -> None:
    job = {"name": "a", "template": {"spec": {"completions": 1, "template": {"spec": POD}}}}
    body = {"metadata": {"name": "j"}, "spec": {"replicatedJobs": [job]}}
    assert "status" not in world.create("/apis/jobset.x-k8s.io/v1alpha2/namespaces/ns/jobsets", body)


def test_events_always_have_their_times_and_reporters(world: World) -> None:
    body = {
        "metadata": {"name": "e"},
        "regarding": {"kind": "Pod", "name": "p", "namespace": "ns"},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "scheduler",
        "reportingInstance": "scheduler-0",
        "action": "Binding",
        "reason": "Scheduled",
        "type": "Normal",
    }
    seen = world.create("/apis/events.k8s.io/v1/namespaces/ns/events", body)
    assert (seen["deprecatedLastTimestamp"], seen["deprecatedSource"]) == (None, {})
    stored = world.get(f"{EVENTS}/e")
    assert stored["lastTimestamp"] is None and stored["firstTimestamp"] is None  # kubectl --sort-by finds the field
    again = world.patch(f"{EVENTS}/e", {"message": "x"})
    assert again["lastTimestamp"] is None
    plain = world.create(EVENTS, {"metadata": {"name": "f"}, "involvedObject": {"kind": "Pod", "name": "p"}})
    assert (plain["eventTime"], plain["reportingComponent"], plain["reportingInstance"]) == (None, "", "")
