"""RayCluster, RayJob and PyTorchJob: the same object gives exactly these groups."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from phalanx.controllers.grouping import GroupingRefused
from phalanx.controllers.workloads.member import PodView
from phalanx.controllers.workloads.registry import group, kind_of, places

Json = dict[str, Any]


def pod(**spec: Any) -> Json:
    return {"spec": {"containers": [{"name": "c", "image": "i"}], **spec}}


def ray(kind: str, **spec: Any) -> Json:
    workers = spec.pop("workers", [{"groupName": "w", "replicas": 4, "minReplicas": 2, "template": pod()}])
    body = {"headGroupSpec": {"template": spec.pop("head", pod())}, "workerGroupSpecs": workers, **spec}
    meta = {"name": "r", "namespace": "ml", "uid": "UID"}
    return {
        "apiVersion": "ray.io/v1",
        "kind": kind,
        "metadata": meta,
        "spec": {"rayClusterSpec": body} if kind == "RayJob" else body,
    }


def torch(elastic: Json | None = None, run: Json | None = None, **replicas: int) -> Json:
    spec: Json = {"pytorchReplicaSpecs": {name: {"replicas": n, "template": pod()} for name, n in replicas.items()}}
    spec |= {"elasticPolicy": elastic} if elastic else {}
    spec |= {"runPolicy": run} if run else {}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "t", "namespace": "ml", "uid": "UID"},
        "spec": spec,
    }


def minimum(obj: Json) -> int:
    found = group(obj)
    assert found is not None and found.workload is not None
    (one,) = found.groups
    return int(one["spec"]["schedulingPolicy"]["gang"]["minCount"])


def golden(api: str, kind: str, name: str, count: int) -> tuple[Json, Json]:
    owner: Json = {"apiVersion": api, "kind": kind, "name": name, "uid": "UID"}
    owner |= {"controller": True, "blockOwnerDeletion": True}
    meta = {"name": name, "namespace": "ml", "ownerReferences": [owner]}
    rules = {"schedulingPolicy": {"gang": {"minCount": count}}, "disruptionMode": {"all": {}}}
    about = {"apiGroup": api.partition("/")[0], "kind": kind, "name": name}
    return (
        {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "Workload",
            "metadata": meta,
            "spec": {"controllerRef": about, "podGroupTemplates": [{"name": "all", **rules}]},
        },
        {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": meta,
            "spec": {"workloadRef": {"workloadName": name, "templateName": "all"}, **rules},
        },
    )


def test_a_ray_cluster_is_one_gang_of_head_and_workers() -> None:
    found = group(ray("RayCluster"))
    assert found is not None
    assert found.objects == list(golden("ray.io/v1", "RayCluster", "r", 5))
    assert {part: link.pod_group for part, link in found.links.items()} == {"headgroup": "r", "w": "r"}


def test_workers_that_an_autoscaler_adds_are_extras() -> None:
    assert minimum(ray("RayCluster", enableInTreeAutoscaling=True)) == 3
    assert minimum(ray("RayJob", enableInTreeAutoscaling=True)) == 3
    hosts = [{"groupName": "tpu", "replicas": 2, "minReplicas": 1, "numOfHosts": 4, "template": pod()}]
    assert minimum(ray("RayCluster", workers=hosts)) == 9
    assert minimum(ray("RayCluster", workers=hosts, enableInTreeAutoscaling=True)) == 5
    idle = [{"groupName": "w", "replicas": 3, "suspend": True, "template": pod()}]
    assert minimum(ray("RayCluster", workers=idle)) == 1


@pytest.mark.parametrize(
    ("replicas", "with_autoscaler", "without"),
    [
        ({"replicas": 1, "minReplicas": 2}, 2, 2),
        ({"replicas": 5, "maxReplicas": 3}, 0, 3),
        ({"minReplicas": 2}, 2, 2),
        ({"replicas": 3, "minReplicas": 4, "maxReplicas": 2}, 2, 2),
        ({}, 0, 0),
    ],
)
def test_a_worker_group_has_as_many_replicas_as_its_operator_creates(
    replicas: Json, with_autoscaler: int, without: int
) -> None:
    """A gang of replicas above `maxReplicas` would wait for pods that never come."""
    workers = [{"groupName": "w", "template": pod(), **replicas}]
    assert minimum(ray("RayCluster", workers=workers)) == 1 + without
    assert minimum(ray("RayCluster", workers=workers, enableInTreeAutoscaling=True)) == 1 + with_autoscaler


def test_the_head_requests_what_its_autoscaler_does() -> None:
    def head(**spec: Any) -> list[Json]:
        obj = ray("RayCluster", **spec)
        kind = kind_of(obj)
        assert kind is not None
        containers: list[Json] = next(iter(kind.templates(obj)))["spec"]["containers"]
        return containers

    assert [each["name"] for each in head()] == ["c"]
    (own, autoscaler) = head(enableInTreeAutoscaling=True)
    assert own["name"] == "c" and autoscaler["resources"]["requests"] == {"cpu": "500m", "memory": "512Mi"}
    more = {"requests": {"cpu": "2"}}
    assert head(enableInTreeAutoscaling=True, autoscalerOptions={"resources": more})[1]["resources"] == more


def test_a_ray_job_has_the_groups_of_the_cluster_it_makes() -> None:
    found = group(ray("RayJob"))
    assert found is not None and found.workload is not None
    assert found.workload["spec"]["controllerRef"] == {"apiGroup": "ray.io", "kind": "RayCluster", "name": "r-0"}
    elsewhere = {**ray("RayJob"), "spec": {"clusterSelector": {"ray.io/cluster": "there"}}}
    assert not group(elsewhere)


def test_a_pytorch_job_is_one_gang_and_an_elastic_one_of_its_least() -> None:
    found = group(torch(Master=1, Worker=3))
    assert found is not None
    assert found.objects == list(golden("kubeflow.org/v1", "PyTorchJob", "t", 4))
    assert set(found.links) == {"master", "worker"}
    assert minimum(torch({"minReplicas": 2, "maxReplicas": 6}, Master=1, Worker=4)) == 3
    assert minimum(torch({"minReplicas": 2}, Worker=4)) == 2
    assert minimum(torch(None, {"schedulingPolicy": {"minAvailable": 2}}, Master=1, Worker=4)) == 2


def test_groups_are_there_while_their_workload_is_suspended_as_those_of_jobs() -> None:
    """A plan knows what the workload will ask for, and resuming it finds the same groups."""
    job, cluster = ray("RayJob"), ray("RayCluster")
    job["spec"]["suspend"] = cluster["spec"]["suspend"] = True
    assert minimum(job) == minimum(cluster) == 5
    assert minimum(torch(None, {"suspend": True}, Worker=4)) == 4


def test_what_can_never_be_a_gang_is_refused() -> None:
    with pytest.raises(GroupingRefused, match="a gang of 9 can never form: there are only 5 pods"):
        group(torch(None, {"schedulingPolicy": {"minAvailable": 9}}, Master=1, Worker=4))
    with pytest.raises(GroupingRefused, match=r"headgroup \(high\), w \(none\)"):
        group(ray("RayCluster", head=pod(priorityClassName="high")))


@pytest.mark.parametrize(
    ("kind", "labels", "part"),
    [
        ("RayCluster", {"ray.io/group": "headgroup"}, "headgroup"),
        ("RayCluster", {"ray.io/group": "w"}, "w"),
        ("PyTorchJob", {"training.kubeflow.org/replica-type": "worker"}, "worker"),
    ],
)
def test_a_pod_is_known_by_what_its_operator_writes_on_it(kind: str, labels: dict[str, str], part: str) -> None:
    body = {"metadata": {"labels": labels, "ownerReferences": [{"kind": kind, "name": "x", "controller": True}]}}
    (place,) = places(msgspec.convert(body, PodView))
    assert place == (kind, "x", (part,))


@pytest.mark.parametrize(("obj", "count"), [(ray("RayCluster"), 5), (ray("RayJob"), 5), (torch(Worker=3), 3)])
def test_its_pods_are_known_before_they_exist(obj: Json, count: int) -> None:
    kind = kind_of(obj)
    assert kind is not None
    made = list(kind.pods(obj, (), kind.group(obj, ())))
    assert len(made) == count and all(pod.link is not None for pod in made)
