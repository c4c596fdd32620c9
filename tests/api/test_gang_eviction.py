"""Eviction of a member of a gang that is only disrupted as a whole: all go, or none does."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.base.errors import TooManyRequests
from support.api_world import PODS, STRATEGIC, World
from support.manifests import gang, pod

GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/ns/podgroups"
POLICIES = "/apis/scheduling.phalanx.dev/v1alpha1/namespaces/ns/workloadpolicies"
BUDGETS = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets"


def run_gang(world: World, mode: str, size: int = 3) -> None:
    group, *members = gang("g", size, mode=mode, labels={"app": "web"})
    world.create(GROUPS, group)
    for number, body in enumerate(members):
        world.create(PODS, body)
        world.create(f"{PODS}/g-{number}/binding", {"target": {"kind": "Node", "name": f"n{number}"}})
        ready = [{"type": "Ready", "status": "True"}]
        status = {"phase": "Running", "conditions": ready}
        world.patch(f"{PODS}/g-{number}/status", {"status": status}, STRATEGIC)


def evict(world: World, name: str) -> Any:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    return world.create(f"{PODS}/{name}/eviction", eviction)


def leaving(world: World) -> list[str]:
    found = [world.get(f"{PODS}/g-{number}")["metadata"] for number in range(3)]
    return [meta["name"] for meta in found if meta.get("deletionTimestamp")]


def budget(world: World, allowed: int) -> None:
    body = {"metadata": {"name": "b"}, "spec": {"maxUnavailable": 3, "selector": {"matchLabels": {"app": "web"}}}}
    made = world.create(BUDGETS, body)
    status = {
        "observedGeneration": made["metadata"]["generation"],
        "disruptionsAllowed": allowed,
        "currentHealthy": 3,
        "desiredHealthy": 0,
        "expectedPods": 3,
    }
    world.patch(f"{BUDGETS}/b/status", {"status": status})


def test_mode_single_lets_a_pod_go_alone(world: World) -> None:
    run_gang(world, "single")
    evict(world, "g-1")
    assert leaving(world) == ["g-1"]


def test_mode_all_takes_the_gang_together(world: World) -> None:
    run_gang(world, "all")
    assert evict(world, "g-1")["status"] == "Success"
    assert leaving(world) == ["g-0", "g-1", "g-2"]
    targets = [c for c in world.get(f"{PODS}/g-2")["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert targets[0]["reason"] == "EvictionByEvictionAPI"


def test_the_answer_warns_that_the_other_members_are_evicted_too(world: World) -> None:
    run_gang(world, "all")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "g-1"}}
    answer = world.ask("create", f"{PODS}/g-1/eviction", eviction)
    assert answer.warnings == ("PodGroup g is evicted as a whole (disruption mode all): 2 other pods go with g-1",)


def test_terminate_all_takes_the_gang_together(world: World) -> None:
    run_gang(world, "single")
    spec = {"targetRef": {"kind": "PodGroup", "name": "g"}, "rescheduling": {"policy": "TerminateAll"}}
    world.create(POLICIES, {"metadata": {"name": "p"}, "spec": spec})
    evict(world, "g-1")
    assert leaving(world) == ["g-0", "g-1", "g-2"]


def test_a_gang_that_its_budget_cannot_pay_for_is_refused_whole_with_a_reason(world: World) -> None:
    run_gang(world, "all")
    budget(world, allowed=2)
    with pytest.raises(TooManyRequests) as caught:
        evict(world, "g-1")
    text = caught.value.causes[0]["message"]
    assert "PodGroup g is evicted as a whole (disruption mode all)" in text
    assert "allows 2 disruptions, 3 are needed" in text
    assert caught.value.retry_after == 10
    assert leaving(world) == []


def test_a_budget_that_can_pay_pays_for_all(world: World) -> None:
    run_gang(world, "all")
    budget(world, allowed=3)
    evict(world, "g-1")
    assert leaving(world) == ["g-0", "g-1", "g-2"]
    assert world.get(f"{BUDGETS}/b")["status"]["disruptionsAllowed"] == 0


def test_members_that_have_ended_stay_as_they_are(world: World) -> None:
    run_gang(world, "all")
    world.patch(f"{PODS}/g-2/status", {"status": {"phase": "Succeeded"}}, STRATEGIC)
    evict(world, "g-1")
    assert leaving(world) == ["g-0", "g-1"]


def test_no_more_replicas_are_disrupted_than_the_policy_allows(world: World) -> None:
    for name in ("a", "b"):
        spec = {"schedulingPolicy": {"gang": {"minCount": 1}}}
        owner = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "lws", "uid": "u"}
        world.create(GROUPS, {"metadata": {"name": name, "ownerReferences": [owner]}, "spec": spec})
        body = pod(f"{name}-0")
        body["spec"]["schedulingGroup"] = {"podGroupName": name}
        world.create(PODS, body)
        world.create(f"{PODS}/{name}-0/binding", {"target": {"kind": "Node", "name": "n"}})
        world.patch(f"{PODS}/{name}-0/status", {"status": {"phase": "Running"}}, STRATEGIC)
    target = {"kind": "LeaderWorkerSet", "name": "lws"}
    spec = {"targetRef": target, "disruption": {"maxUnavailableReplicas": 1}}
    world.create(POLICIES, {"metadata": {"name": "p"}, "spec": spec})
    evict(world, "a-0")
    with pytest.raises(TooManyRequests) as caught:
        evict(world, "b-0")
    assert "WorkloadPolicy p allows 1 unavailable replicas" in caught.value.causes[0]["message"]
