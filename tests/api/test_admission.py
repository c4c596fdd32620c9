"""What the server adds to new objects, and what it refuses: priorities, tolerations, protection."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from phalanx.base.errors import Forbidden
from support.api_world import PODS, World
from support.manifests import pod

CLASSES = "/apis/scheduling.k8s.io/v1/priorityclasses"
GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/ns/podgroups"
COMPOSITES = "/apis/scheduling.k8s.io/v1alpha3/namespaces/ns/compositepodgroups"


def group(name: str = "g", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"schedulingPolicy": {"basic": {}}, **spec}}


def composite(name: str = "c", **spec: Any) -> dict[str, Any]:
    return group(name, workloadRef={"workloadName": "w", "templateName": "t"}, **spec)


def make_class(world: World, name: str, value: int, **more: Any) -> None:
    world.create(CLASSES, {"metadata": {"name": name}, "value": value, **more})


@pytest.fixture
def strict() -> Iterator[World]:
    world = World(gates={"PodGroupPreemptionPolicy": True})
    yield world
    world.close()


def test_a_pod_gets_the_priority_of_its_class(world: World) -> None:
    make_class(world, "high", 1000, preemptionPolicy="Never")
    spec = world.create(PODS, pod("p", priorityClassName="high"))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (1000, "Never")
    spec = world.create(PODS, pod("q"))["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    assert "priorityClassName" not in spec


def test_the_global_default_class(world: World) -> None:
    make_class(world, "normal", 50, globalDefault=True)
    spec = world.create(PODS, pod("p"))["spec"]
    assert (spec["priorityClassName"], spec["priority"]) == ("normal", 50)
    assert world.create(GROUPS, group())["spec"]["priority"] == 50
    with pytest.raises(Forbidden, match="normal is already marked as default. Only one default can exist"):
        make_class(world, "other", 1, globalDefault=True)
    world.patch(f"{CLASSES}/normal", {"description": "still the default"})
    world.delete(f"{CLASSES}/normal")
    assert world.create(PODS, pod("q"))["spec"]["priority"] == 0


def test_a_class_that_changes_counts_from_then_on(world: World) -> None:
    make_class(world, "high", 5)
    world.create(PODS, pod("p", priorityClassName="high"))
    world.delete(f"{CLASSES}/high")
    make_class(world, "high", 6)
    assert world.create(PODS, pod("q", priorityClassName="high"))["spec"]["priority"] == 6


def test_a_priority_of_ones_own_must_be_the_computed_one(world: World) -> None:
    make_class(world, "high", 1000)
    with pytest.raises(Forbidden) as caught:
        world.create(PODS, pod("p", priorityClassName="high", priority=7))
    assert caught.value.message == (
        'pods "p" is forbidden: the integer value of priority (7) must not be provided in pod spec; '
        "priority admission controller computed 1000 from the given PriorityClass name"
    )
    assert world.create(PODS, pod("p", priorityClassName="high", priority=1000))["spec"]["priority"] == 1000
    with pytest.raises(Forbidden, match=r"the string value of PreemptionPolicy \(Never\)"):
        world.create(PODS, pod("q", priorityClassName="high", preemptionPolicy="Never"))


@pytest.mark.parametrize(
    ("path", "make", "noun"), [(GROUPS, group, "pod group"), (COMPOSITES, composite, "composite pod group")]
)
def test_groups_get_priorities_too(world: World, path: str, make: Any, noun: str) -> None:
    make_class(world, "high", 1000)
    assert world.create(path, make("a", priorityClassName="high"))["spec"]["priority"] == 1000
    with pytest.raises(Forbidden, match="no PriorityClass with name foo was found"):
        world.create(path, make("b", priorityClassName="foo"))
    with pytest.raises(Forbidden) as caught:
        world.create(path, make("c", priority=7))
    assert caught.value.message.endswith(
        f"priority set in the {noun} (7) must match the priority computed (0) "
        "based on the priority class set in the spec"
    )


@pytest.mark.parametrize(
    ("path", "make", "noun"), [(GROUPS, group, "pod group"), (COMPOSITES, composite, "composite pod group")]
)
def test_the_preemption_policy_of_groups_behind_its_gate(strict: World, path: str, make: Any, noun: str) -> None:
    make_class(strict, "meek", 5, preemptionPolicy="Never")
    said = strict.create(path, make("a", priorityClassName="meek", preemptionPolicy="Never"))
    assert said["spec"]["preemptionPolicy"] == "Never"
    with pytest.raises(Forbidden) as caught:
        strict.create(path, make("b", priorityClassName="meek"))
    assert caught.value.message.endswith(
        f"the string value of PreemptionPolicy (PreemptLowerPriority) must not be provided in {noun} spec; "
        "priority admission controller computed Never from the given PriorityClass name"
    )


def test_groups_are_protected(world: World) -> None:
    made = world.create(GROUPS, {**group(), "metadata": {"name": "g", "finalizers": ["example.com/mine"]}})
    assert made["metadata"]["finalizers"] == ["example.com/mine", "scheduling.k8s.io/podgroup-protection"]
    made = world.create(COMPOSITES, composite())
    assert made["metadata"]["finalizers"] == ["scheduling.k8s.io/compositepodgroup-protection"]


def test_volumes_and_claims_are_protected_from_the_start(world: World) -> None:
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
    volume = world.create("/api/v1/persistentvolumes", {"metadata": {"name": "v"}, "spec": spec})
    assert volume["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]
    asked = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    body = {"metadata": {"name": "c", "finalizers": ["kubernetes.io/pvc-protection"]}, "spec": asked}
    claim = world.create("/api/v1/namespaces/default/persistentvolumeclaims", body)
    assert claim["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]


def test_a_volume_says_since_when_it_is_in_its_phase(world: World) -> None:
    path = "/api/v1/persistentvolumes"
    spec = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/x"}}
    made = world.create(path, {"metadata": {"name": "v"}, "spec": spec})
    born = made["metadata"]["creationTimestamp"]
    assert made["status"] == {"phase": "Pending", "lastPhaseTransitionTime": born}
    world.clock.advance(60)
    said = world.patch(f"{path}/v/status", {"status": {"message": "soon"}})
    assert said["status"]["lastPhaseTransitionTime"] == born
    said = world.patch(f"{path}/v/status", {"status": {"phase": "Available"}})
    assert said["status"]["lastPhaseTransitionTime"] > born
    mine = "2000-01-01T00:00:00Z"
    said = world.patch(f"{path}/v/status", {"status": {"phase": "Bound", "lastPhaseTransitionTime": mine}})
    assert said["status"]["lastPhaseTransitionTime"] == mine


def test_pods_stay_five_minutes_on_a_lost_node(world: World) -> None:
    tolerations = world.create(PODS, pod("p"))["spec"]["tolerations"]
    assert tolerations == [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
        for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
    ]
    own = {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}
    tolerations = world.create(PODS, pod("q", tolerations=[own]))["spec"]["tolerations"]
    assert tolerations[0] == own and [t["key"] for t in tolerations[1:]] == ["node.kubernetes.io/unreachable"]
    everything = [{"operator": "Exists"}]
    assert world.create(PODS, pod("r", tolerations=everything))["spec"]["tolerations"] == everything


def test_an_ingress_without_a_class_gets_the_default_one(world: World) -> None:
    classes, ingresses = (
        "/apis/networking.k8s.io/v1/ingressclasses",
        "/apis/networking.k8s.io/v1/namespaces/default/ingresses",
    )
    spec = {"defaultBackend": {"service": {"name": "s", "port": {"number": 80}}}}
    assert "ingressClassName" not in world.create(ingresses, {"metadata": {"name": "a"}, "spec": spec})["spec"]
    default = {"ingressclass.kubernetes.io/is-default-class": "true"}
    for name in ("y", "x"):
        meta = {"name": name, "annotations": default}
        world.create(classes, {"metadata": meta, "spec": {"controller": "example.com/c"}})
    assert world.create(ingresses, {"metadata": {"name": "b"}, "spec": spec})["spec"]["ingressClassName"] in ("x", "y")
    named = {**spec, "ingressClassName": "z"}
    assert world.create(ingresses, {"metadata": {"name": "c"}, "spec": named})["spec"]["ingressClassName"] == "z"


def test_a_claim_without_a_class_is_created_with_the_default_one(world: World) -> None:
    """Without it the scheduler reads a claim without a class, and the pod gets a FailedScheduling event."""
    path = "/apis/storage.k8s.io/v1/storageclasses"
    claims = "/api/v1/namespaces/default/persistentvolumeclaims"
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    assert "storageClassName" not in world.create(claims, {"metadata": {"name": "early"}, "spec": spec})["spec"]
    meta = {"name": "fast", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}
    world.create(path, {"metadata": meta, "provisioner": "example.com/disk"})
    assert world.create(claims, {"metadata": {"name": "open"}, "spec": spec})["spec"]["storageClassName"] == "fast"
    none = {**spec, "storageClassName": ""}
    assert world.create(claims, {"metadata": {"name": "none"}, "spec": none})["spec"]["storageClassName"] == ""
    old = {"name": "old", "annotations": {"volume.beta.kubernetes.io/storage-class": "slow"}}
    assert "storageClassName" not in world.create(claims, {"metadata": old, "spec": spec})["spec"]


def test_a_pod_with_a_negative_grace_period_has_one_second(world: World) -> None:
    made = world.create(PODS, pod("p", terminationGracePeriodSeconds=-1))
    assert made["spec"]["terminationGracePeriodSeconds"] == 1
    again = {**made, "spec": {**made["spec"], "terminationGracePeriodSeconds": -5}}
    assert world.update(f"{PODS}/p", again)["spec"]["terminationGracePeriodSeconds"] == 1


def test_an_update_of_tolerations_need_not_repeat_the_default_ones(world: World) -> None:
    made = world.create(PODS, pod("p"))
    mine = {"key": "mine", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}
    changed = world.update(f"{PODS}/p", {**made, "spec": {**made["spec"], "tolerations": [mine]}})
    assert changed["spec"]["tolerations"] == [mine, *made["spec"]["tolerations"]]


def test_an_update_without_the_admitted_fields_keeps_them(world: World) -> None:
    made = world.create(PODS, pod("p"))
    for name in ("priority", "preemptionPolicy"):
        del made["spec"][name]
    updated = world.update(f"{PODS}/p", made)
    assert (updated["spec"]["priority"], updated["spec"]["preemptionPolicy"]) == (0, "PreemptLowerPriority")
