"""What 0.2.0 left in a cluster: its custom resources, groups and pods, taken over by the parts of today."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from phalanx.controllers.grouping.names import by_uid, of_template
from phalanx.model.crds import definitions
from support.programs import program
from support.real_cluster import CUSTOM, LABEL, Json, RealCluster
from support.waiting import eventually

SIZE = 3
SPACE = "old"
BOUND_IN_GROUP = "scheduling.phalanx.dev/bound-in-group"


def old_definitions() -> list[Json]:
    """The custom resources of 0.2.0: no WorkloadPolicy, no status of Workloads, and fewer fields in that of groups."""
    found = []
    for definition in copy.deepcopy(definitions()):
        if definition["spec"]["names"]["kind"] == "WorkloadPolicy":
            continue
        (version,) = definition["spec"]["versions"]
        properties = version["schema"]["openAPIV3Schema"]["properties"]
        version.pop("additionalPrinterColumns", None)
        if definition["spec"]["names"]["kind"] == "Workload":
            properties.pop("status")
            version.pop("subresources")
        else:
            for field in ("pods", "scheduledPods", "restarts"):
                properties["status"]["properties"].pop(field)
        found.append(definition)
    return found


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    for name in ("etcd", "kube-apiserver", "kubectl"):
        program(name)
    real = RealCluster(tmp_path_factory.mktemp("old"), groups=False)
    try:
        for definition in old_definitions():
            real.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        eventually(lambda: _served(real), "the custom resources are served")
        real.nodes(4, 4)
        real.namespace(SPACE)
        yield real
        assert real.broken() == []
    finally:
        real.close()


def _served(cluster: RealCluster) -> bool:
    try:
        return cluster.items(f"{cluster.group_api}/podgroups") == []
    except Exception:
        return False


def job(cluster: RealCluster, name: str) -> Json:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never"}}
    spec = {"parallelism": SIZE, "completions": SIZE, "completionMode": "Indexed", "template": template}
    meta = {"name": name, "annotations": {"scheduling.phalanx.dev/gang": "true"}}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
    return cluster.create(f"/apis/batch/v1/namespaces/{SPACE}/jobs", body)


def groups_of(cluster: RealCluster, owner: Json) -> Json:
    """Write the Workload and the PodGroup of a Job as 0.2.0 wrote them; the PodGroup."""
    name, uid = owner["metadata"]["name"], owner["metadata"]["uid"]
    reference: Json = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
    reference["blockOwnerDeletion"] = True
    labels = {"app.kubernetes.io/managed-by": "phalanx-controllers"}
    policy = {"gang": {"minCount": SIZE}}
    workload = by_uid(name, uid)
    template = f"{name}-pgt-0"
    made = cluster.create(
        f"{cluster.group_api}/namespaces/{SPACE}/workloads",
        {
            "apiVersion": f"{CUSTOM}/v1beta1",
            "kind": "Workload",
            "metadata": {"name": workload, "labels": labels, "ownerReferences": [reference]},
            "spec": {
                "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": name},
                "podGroupTemplates": [{"name": template, "schedulingPolicy": policy}],
            },
        },
    )
    second = {"apiVersion": f"{CUSTOM}/v1beta1", "kind": "Workload", "name": workload, "uid": made["metadata"]["uid"]}
    return cluster.create(
        f"{cluster.group_api}/namespaces/{SPACE}/podgroups",
        {
            "apiVersion": f"{CUSTOM}/v1beta1",
            "kind": "PodGroup",
            "metadata": {
                "name": of_template(workload, template),
                "labels": labels,
                "ownerReferences": [reference, second],
            },
            "spec": {
                "workloadRef": {"workloadName": workload, "templateName": template},
                "schedulingPolicy": policy,
                "priority": 0,
            },
        },
    )


def pod(cluster: RealCluster, owner: Json, group: Json, number: int, node: str = "") -> Json:
    """Create a pod as the Job controller made it and the webhook of 0.2.0 linked it."""
    meta, spec = owner["metadata"], copy.deepcopy(owner["spec"]["template"])
    labels = {**spec["metadata"]["labels"], LABEL: group["metadata"]["name"]}
    labels["batch.kubernetes.io/job-completion-index"] = str(number)
    reference: Json = {"apiVersion": "batch/v1", "kind": "Job", "name": meta["name"], "uid": meta["uid"]}
    annotations = {BOUND_IN_GROUP: group["metadata"]["uid"]} if node else {}
    body = {
        "metadata": {
            "name": f"{meta['name']}-{number}",
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {**spec["spec"], "schedulerName": "phalanx", **({"nodeName": node} if node else {})},
    }
    return cluster.create(f"/api/v1/namespaces/{SPACE}/pods", body)


def test_names_are_those_of_0_2_0() -> None:
    """Other names would give every running workload a second set of groups."""
    workload = by_uid("train", "5e419b51-a770-4dbb-8e0a-7246272b6a89")
    assert workload == "train-5bbc758bbd"
    assert of_template(workload, "train-pgt-0") == "train-5bbc758bbd-train-pgt-0-5bddd97cf7"


def test_gangs_of_0_2_0_run_on_and_waiting_ones_start(cluster: RealCluster) -> None:
    runs, waits = job(cluster, "runs"), job(cluster, "waits")
    running, waiting = groups_of(cluster, runs), groups_of(cluster, waits)
    before = [pod(cluster, runs, running, number, f"node-{number}") for number in range(SIZE)]
    for number in range(SIZE - 1):
        pod(cluster, waits, waiting, number)

    cluster.install()  # the new custom resources over the old ones, and everything else
    scheduler = cluster.start("scheduler")
    controllers = cluster.start("controllers")
    eventually(lambda: _reported(cluster, waiting) == "WaitingForMembers", "the new scheduler reports the waiting gang")
    assert cluster.bound(SPACE) == [f"runs-{number}" for number in range(SIZE)]

    pod(cluster, waits, waiting, SIZE - 1)
    cluster.wait_whole(SPACE, waiting["metadata"]["name"])
    after = {found["metadata"]["name"]: found for found in cluster.pods(SPACE)}
    for found in before:  # not evicted, not made again, not moved
        same = after[found["metadata"]["name"]]
        assert same["metadata"]["uid"] == found["metadata"]["uid"] and "deletionTimestamp" not in same["metadata"]
        assert same["spec"]["nodeName"] == found["spec"]["nodeName"]
    kept = {found["metadata"]["uid"] for found in cluster.items(f"{cluster.group_api}/podgroups")}
    assert kept == {running["metadata"]["uid"], waiting["metadata"]["uid"]}
    # The status has the fields of the new custom resources.
    eventually(lambda: (_group(cluster, running).get("status") or {}).get("pods") == SIZE, "the pods are counted")
    assert scheduler.alive and controllers.alive
    assert cluster.forbidden() == []


def _group(cluster: RealCluster, group: Json) -> Json:
    path = f"{cluster.group_api}/namespaces/{SPACE}/podgroups/{group['metadata']['name']}"
    found: Json = cluster.ask("GET", path)
    return found


def _reported(cluster: RealCluster, group: Json) -> str:
    conditions = (_group(cluster, group).get("status") or {}).get("conditions") or ()
    found = {condition["type"]: condition["reason"] for condition in conditions}
    return str(found.get("PodGroupInitiallyScheduled") or "")
