"""A user of another scheduler changes schedulerName: the gang is scheduled, and its PodGroup shows the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from phalanx.kube.dialects import DIALECTS
from phalanx.kube.dialects.hypernodes import RESOURCE as HYPERNODES
from support.local_cluster import LocalCluster

GROUPS = "/apis/scheduling.volcano.sh/v1beta1/namespaces/{}/podgroups"


def definition(resource: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{resource.group}"},
        "spec": {
            "group": resource.group,
            "scope": "Namespaced" if resource.namespaced else "Cluster",
            "names": {"plural": resource.plural, "kind": resource.kind},
            "versions": [
                {
                    "name": resource.version,
                    "served": True,
                    "storage": True,
                    # Volcano's own definition of its PodGroup has none.
                    "subresources": {} if resource.group == "scheduling.volcano.sh" else {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
                }
            ],
        },
    }


@pytest.fixture(scope="module")
def cluster(start_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    made = start_cluster(nodes=4, topology="racks=2,cpu=4", dialects=("volcano", "coscheduling"))
    made.apply(
        definition(DIALECTS["volcano"].resource),
        definition(DIALECTS["coscheduling"].resource),
        definition(HYPERNODES),
    )
    return made


def group(namespace: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": namespace},
        "spec": spec,
    }


def pod(namespace: str, name: str, cpu: str = "1", **more: Any) -> dict[str, Any]:
    annotations = {"scheduling.k8s.io/group-name": "g"} | (
        {"volcano.sh/task-spec": more["task"]} if "task" in more else {}
    )
    spec = {"containers": [{"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}]}
    if "scheduler" in more:
        spec["schedulerName"] = more["scheduler"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations},
        "spec": spec,
    }


def space(cluster: LocalCluster, name: str) -> str:
    cluster.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


def condition(pod: Any) -> str:
    """The message of the condition PodScheduled."""
    return next((str(c["message"]) for c in pod["status"].get("conditions") or () if c["type"] == "PodScheduled"), "")


def phase(found: Any) -> str:
    return str((found.get("status") or {}).get("phase"))


def test_a_gang_waits_for_its_tasks_and_starts_together(cluster: LocalCluster) -> None:
    here = space(cluster, "tasks")
    for name, task in (("m", "master"), ("w0", "worker")):  # pods before their group
        cluster.apply(pod(here, name, task=task))
    cluster.apply(group(here, minMember=3, minTaskMember={"master": 1, "worker": 2}))
    path = GROUPS.format(here) + "/g"
    found = cluster.wait(path, lambda found: bool((found.get("status") or {}).get("conditions")))
    assert phase(found) == "Inqueue"
    assert [c["reason"] for c in found["status"]["conditions"]] == ["NotEnoughTasks"]
    assert not any(pod["spec"].get("nodeName") for pod in cluster.get(f"/api/v1/namespaces/{here}/pods")["items"])
    cluster.apply(pod(here, "w1", task="worker"))
    found = cluster.wait(path, lambda found: phase(found) == "Running" and found["status"]["running"] == 3)
    assert found["status"]["conditions"][0]["type"] == "Scheduled"


def test_a_gang_without_room_says_so_in_its_own_words(cluster: LocalCluster) -> None:
    here = space(cluster, "full")
    cluster.apply(group(here, minMember=2), *(pod(here, f"p{n}", cpu="100") for n in range(2)))
    found = cluster.wait(GROUPS.format(here) + "/g", lambda found: bool((found.get("status") or {}).get("conditions")))
    (condition,) = found["status"]["conditions"]
    assert (condition["type"], condition["reason"]) == ("Unschedulable", "NotEnoughResources")
    assert "cpu" in condition["message"]


def test_a_gang_stays_in_one_hypernode(cluster: LocalCluster) -> None:
    here = space(cluster, "tiers")
    for name, nodes in (("left", "[01]"), ("right", "[23]")):
        members = [{"type": "Node", "selector": {"regexMatch": {"pattern": f"^node-0000{nodes}$"}}}]
        cluster.apply(
            {
                "apiVersion": "topology.volcano.sh/v1alpha1",
                "kind": "HyperNode",
                "metadata": {"name": name},
                "spec": {"tier": 1, "members": members},
            }
        )
    spec = {"minMember": 2, "networkTopology": {"mode": "hard", "highestTierAllowed": 1}}
    cluster.apply(group(here, **spec), *(pod(here, f"p{n}", cpu="2") for n in range(2)))
    cluster.wait(GROUPS.format(here) + "/g", lambda found: phase(found) == "Running")
    nodes = {pod["spec"]["nodeName"] for pod in cluster.get(f"/api/v1/namespaces/{here}/pods")["items"]}
    assert nodes <= {"node-00000", "node-00001"} or nodes <= {"node-00002", "node-00003"}


def test_remedies_name_the_podgroup_of_the_user(cluster: LocalCluster) -> None:
    here = space(cluster, "remedies")
    cluster.apply(group(here, minMember=20), *(pod(here, f"p{n}") for n in range(20)))
    found = cluster.wait(
        f"/phalanx/v1/why?kind=PodGroup&namespace={here}&name=g", lambda found: "minCount" in str(found)
    )
    assert "change the minimum in podgroups.scheduling.volcano.sh/g" in str(found)


def test_a_podgroup_with_parts_is_explained_by_its_own_name(cluster: LocalCluster) -> None:
    here = space(cluster, "parts")
    cluster.apply(group(here, minMember=2, minTaskMember={"worker": 2}), pod(here, "w0", task="worker"))
    found = cluster.wait(f"/phalanx/v1/why?kind=PodGroup&namespace={here}&name=g", lambda found: bool(found))
    assert "g-worker" in str(found)


def test_whatif_reads_the_podgroups_of_manifests(cluster: LocalCluster) -> None:
    two = [pod("default", f"p{n}", task="worker") for n in range(2)]

    def asked(*manifests: Any) -> Any:
        return cluster.create("/phalanx/v1/whatif", {"items": [*two, *manifests], "namespace": "default"})

    whole = asked(group("default", minMember=2, minTaskMember={"worker": 2}))
    assert [item["root"] for item in whole["items"]] == ["compositepodgroup/default/g"] and whole["fits"]
    assert not asked(group("default", minMember=3))["fits"]  # a member is missing
    assert "spec.minMember: 'many'" in str(asked(group("default", minMember="many")))


def test_groups_of_another_scheduler_are_left_alone(cluster: LocalCluster) -> None:
    theirs, ours = space(cluster, "theirs"), space(cluster, "after-theirs")
    cluster.apply(group(theirs, minMember=1), pod(theirs, "p", scheduler="volcano"))
    cluster.apply(group(ours, minMember=1), pod(ours, "p"))
    cluster.wait(GROUPS.format(ours) + "/g", lambda found: phase(found) == "Running")
    assert "status" not in cluster.get(GROUPS.format(theirs) + "/g")
    assert "nodeName" not in cluster.get(f"/api/v1/namespaces/{theirs}/pods/p")["spec"]


def test_a_group_with_nonsense_gets_an_event_and_its_pods_wait(cluster: LocalCluster) -> None:
    here = space(cluster, "odd")
    cluster.apply(group(here, minMember="many"), pod(here, "p"))
    events = cluster.wait(
        f"/api/v1/namespaces/{here}/events",
        lambda found: any(event["involvedObject"]["kind"] == "PodGroup" for event in found["items"]),
    )["items"]
    (event,) = (event for event in events if event["involvedObject"]["kind"] == "PodGroup")
    assert event["involvedObject"]["apiVersion"] == "scheduling.volcano.sh/v1beta1"
    assert "spec.minMember" in event["message"]
    waiting = cluster.wait(f"/api/v1/namespaces/{here}/pods/p", condition)
    assert "nodeName" not in waiting["spec"]
    assert "spec.minMember: 'many'" in condition(waiting)
    found = cluster.wait(GROUPS.format(here) + "/g", lambda found: bool((found.get("status") or {}).get("conditions")))
    status = found["status"]
    assert [(c["reason"], c["message"]) for c in status["conditions"]] == [("Invalid", condition(waiting))]
    cluster.apply(group(here, minMember=1))
    cluster.wait(GROUPS.format(here) + "/g", lambda found: phase(found) == "Running")
