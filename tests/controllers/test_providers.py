"""What other schedulers read, word for word; TrainJob and MPIJob as groups."""

from __future__ import annotations

import asyncio
import copy
import json
from typing import Any

import pytest

from phalanx.controllers.group_apis import provider_of
from phalanx.controllers.group_apis.registry import PROVIDERS, total
from phalanx.controllers.grouping import GroupingRefused
from phalanx.controllers.grouping.core import flat
from phalanx.controllers.workloads.leaderworkerset import grouping as lws_grouping
from phalanx.controllers.workloads.mpijob import grouping as mpijob
from phalanx.controllers.workloads.registry import group
from phalanx.controllers.workloads.trainjob import grouping as trainjob
from support.controller_world import Json, condition, world
from support.lws_objects import P, lws

R = "dd6699c7c"
OWNER = {"apiVersion": "v1", "kind": "Pod", "name": "vllm-0", "uid": "LEADERUID"}
OWNER |= {"controller": True, "blockOwnerDeletion": True}
LABELS = {f"{P}name": "vllm", f"{P}group-index": "0", f"{P}template-revision-hash": R}


def vllm(**spec: Any) -> Json:
    annotations = {"scheduling.volcano.sh/queue-name": "q1", "volcano.sh/sla-waiting-time": "5m"}
    found = lws("vllm", 2, 4, annotations=annotations, **spec)
    found["metadata"] |= {"namespace": "default", "uid": "LWSUID"}
    return found


def replica(policy: str = "LeaderCreated") -> Any:
    return lws_grouping.replica_of(vllm(startupPolicy=policy), 0, R, OWNER)


@pytest.mark.parametrize(("policy", "members"), [("LeaderCreated", 4), ("LeaderReady", 1)])
def test_volcano(policy: str, members: int) -> None:
    assert PROVIDERS["volcano"].pod_group(replica(policy)) == {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {
            "name": f"vllm-0-{R}",
            "namespace": "default",
            "labels": LABELS,
            "annotations": {"volcano.sh/sla-waiting-time": "5m"},
            "ownerReferences": [OWNER],
        },
        "spec": {"minMember": members, "minResources": {"cpu": "400m"}, "queue": "q1"},
    }
    pod: Json = {"metadata": {}, "spec": {}}
    PROVIDERS["volcano"].inject_pod_group_metadata(pod, replica(policy), "worker")
    assert pod["metadata"] == {"annotations": {"scheduling.k8s.io/group-name": f"vllm-0-{R}"}}


@pytest.mark.parametrize(("policy", "members"), [("LeaderCreated", 4), ("LeaderReady", 1)])
def test_coscheduling(policy: str, members: int) -> None:
    assert PROVIDERS["coscheduling"].pod_group(replica(policy)) == {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": f"vllm-0-{R}", "namespace": "default", "labels": LABELS, "ownerReferences": [OWNER]},
        "spec": {"minMember": members, "minResources": {"cpu": "400m"}},
    }
    pod: Json = {"metadata": {}, "spec": {}}
    PROVIDERS["coscheduling"].inject_pod_group_metadata(pod, replica(policy), "worker")
    assert pod["metadata"] == {"labels": {"scheduling.x-k8s.io/pod-group": f"vllm-0-{R}"}}


def test_yunikorn_has_no_object_but_task_groups_on_every_pod() -> None:
    provider = PROVIDERS["yunikorn"]
    assert provider.pod_group(replica()) is None and provider.resource is None
    pod: Json = {"metadata": {"labels": {"app": "x"}}, "spec": {}}
    provider.inject_pod_group_metadata(pod, replica(), "worker")
    assert pod["metadata"]["labels"] == {"app": "x", "applicationId": f"default-vllm-0-{R}"}
    annotations = pod["metadata"]["annotations"]
    assert annotations["yunikorn.apache.org/task-group-name"] == "worker"
    assert json.loads(annotations["yunikorn.apache.org/task-groups"]) == [
        {"name": "leader", "minMember": 1, "minResource": {"cpu": "100m"}},
        {"name": "worker", "minMember": 3, "minResource": {"cpu": "100m"}},
    ]


def test_native_tells_what_the_whole_needs_only_when_part_of_it_may_start() -> None:
    whole, part = (PROVIDERS["native"].pod_group(replica(policy)) for policy in ("LeaderCreated", "LeaderReady"))
    assert whole is not None and part is not None
    assert "annotations" not in whole["metadata"]
    assert whole["spec"] == {"schedulingPolicy": {"gang": {"minCount": 4}}, "disruptionMode": {"all": {}}}
    assert part["metadata"]["annotations"] == {"scheduling.phalanx.dev/min-resources": '{"cpu": "400m"}'}
    pod: Json = {"metadata": {}, "spec": {}}
    PROVIDERS["native"].inject_pod_group_metadata(pod, replica(), "leader")
    assert pod["spec"] == {"schedulingGroup": {"podGroupName": f"vllm-0-{R}"}}


def test_the_groups_of_a_leader_worker_set_word_for_word() -> None:
    found = lws_grouping.grouping(vllm(scheduling={}), [(0, R, vllm(scheduling={})), (1, R, vllm(scheduling={}))])
    owner = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet", "name": "vllm", "uid": "LWSUID"}
    owner |= {"controller": True, "blockOwnerDeletion": True}
    assert found.workload == {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "vllm", "namespace": "default", "ownerReferences": [owner]},
        "spec": {
            "controllerRef": {"apiGroup": "leaderworkerset.x-k8s.io", "kind": "LeaderWorkerSet", "name": "vllm"},
            "podGroupTemplates": [
                {"name": "replica", "schedulingPolicy": {"gang": {"minCount": 4}}, "disruptionMode": {"all": {}}}
            ],
        },
    }
    assert [each["metadata"]["name"] for each in found.groups] == [f"vllm-0-{R}", f"vllm-1-{R}"]
    assert found.groups[0] == {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": f"vllm-0-{R}", "namespace": "default", "labels": LABELS, "ownerReferences": [owner]},
        "spec": {
            "workloadRef": {"workloadName": "vllm", "templateName": "replica"},
            "schedulingPolicy": {"gang": {"minCount": 4}},
            "disruptionMode": {"all": {}},
        },
    }
    assert found.links[f"1@{R}"].pod_group == f"vllm-1-{R}"


@pytest.mark.parametrize("scheduling", [{}, None], ids=["asked", "by its template alone"])
def test_a_parent_that_owns_the_workload_is_left_to_it(scheduling: Json | None) -> None:
    keys = {"scheduling.k8s.io/group-template-name": "replica", "scheduling.k8s.io/parent-compositepodgroup": "slice"}
    delegated = vllm() if scheduling is None else vllm(scheduling=scheduling)
    delegated["metadata"].setdefault("annotations", {}).update(keys)
    with pytest.raises(GroupingRefused, match="CompositePodGroup slice above does not exist yet"):
        lws_grouping.grouping(delegated, [(0, R, delegated)])
    plan = {"name": "replica", "schedulingPolicy": {"gang": {"minCount": 1}}}
    top = {"name": "top", "schedulingPolicy": {"basic": {}}, "podGroupTemplates": [plan]}
    theirs = {"kind": "Workload", "metadata": {"name": "w"}, "spec": {"compositePodGroupTemplates": [top]}}
    above = {
        "kind": "CompositePodGroup",
        "metadata": {"name": "slice"},
        "spec": {"workloadRef": {"workloadName": "w", "templateName": "top"}},
    }
    found = lws_grouping.grouping(delegated, [(0, R, delegated)], [above, theirs])
    assert found.workload is None
    assert found.groups[0]["spec"] == {
        "workloadRef": {"workloadName": "w", "templateName": "replica"},
        "schedulingPolicy": {"gang": {"minCount": 1}},
        "parentCompositePodGroupName": "slice",
    }


def test_requests_add_up_exactly() -> None:
    main = {"resources": {"requests": {"cpu": "100m", "memory": "1Gi"}}}
    limited = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    sidecar = {"restartPolicy": "Always", "resources": {"requests": {"cpu": "50m"}}}
    setup = {"resources": {"requests": {"cpu": "1"}}}
    spec = {"containers": [main, limited], "initContainers": [sidecar, setup], "overhead": {"memory": "16Mi"}}
    assert total([(3, spec)]) == {"cpu": "3150m", "memory": "3120Mi", "nvidia.com/gpu": "6"}
    assert total([]) == {} and total([(0, spec)])["cpu"] == "0"


def test_an_unknown_provider_is_named_with_the_known_ones() -> None:
    workload = {"metadata": {"annotations": {"scheduling.phalanx.dev/provider": "volcanoo"}}}
    with pytest.raises(GroupingRefused, match="coscheduling, native, volcano, yunikorn"):
        provider_of(workload)


VOLCANO_CRD = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "podgroups.scheduling.volcano.sh"},
    "spec": {
        "group": "scheduling.volcano.sh",
        "scope": "Namespaced",
        "names": {"kind": "PodGroup", "plural": "podgroups", "listKind": "PodGroupList", "singular": "podgroup"},
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
            }
        ],
    },
}


def test_a_provider_that_is_not_installed_is_reported_and_used_once_it_is() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            annotations = {"scheduling.phalanx.dev/provider": "volcano", "scheduling.phalanx.dev/gang": "true"}
            await cluster.apply(lws("vllm", 1, 2, annotations=annotations))
            found = await cluster.until(
                "LeaderWorkerSet",
                "vllm",
                when=lambda o: condition(o, "WorkloadSchedulingReady").get("reason") == "APINotAvailable",
            )
            assert "install volcano" in condition(found, "WorkloadSchedulingReady")["message"]
            assert cluster.names("Pod") == ["vllm-0"], "no worker before the group"
            await cluster.apply(copy.deepcopy(VOLCANO_CRD), "")
            await cluster.eventually("Pod", lambda pods: len(pods) == 2)
            leader = cluster.look("Pod", "vllm-0")
            assert leader is not None
            name = leader["metadata"]["annotations"]["scheduling.k8s.io/group-name"]
            resource = PROVIDERS["volcano"].resource
            assert resource is not None
            group_object = json.loads(await cluster.client.get(resource, name, "default"))
            assert group_object["spec"]["minMember"] == 2
            assert group_object["metadata"]["ownerReferences"][0]["name"] == "vllm-0"

    asyncio.run(scenario())


# -- TrainJob and MPIJob -----------------------------------------------------------------------------------------------


def mpi_job(workers: int, **spec: Any) -> Json:
    pod = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}
    roles = {"Launcher": {"replicas": 1, "template": pod}, "Worker": {"replicas": workers, "template": pod}}
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": "mj", "namespace": "default", "uid": "U"},
        "spec": {"mpiReplicaSpecs": roles, **spec},
    }


def test_an_mpi_job_is_one_gang_with_its_launcher() -> None:
    found = group(mpi_job(4))
    assert found is not None
    (only,) = found.groups
    assert only["metadata"]["name"] == "mj" and only["spec"]["schedulingPolicy"] == {"gang": {"minCount": 5}}
    assert found.links["launcher"] == found.links["worker"]
    announced = PROVIDERS["coscheduling"].pod_group(mpijob.replica_of(mpi_job(4), OWNER))
    assert announced is not None and announced["metadata"]["name"] == "mj"
    assert announced["spec"] == {"minMember": 5, "minResources": {"cpu": "5"}}


def test_a_launcher_that_waits_for_the_workers_is_no_part_of_their_gang() -> None:
    found = group(mpi_job(4, launcherCreationPolicy="WaitForWorkersReady"))
    assert found is not None
    counts = {g["metadata"]["name"]: g["spec"]["schedulingPolicy"]["gang"]["minCount"] for g in found.groups}
    assert counts == {"mj-worker": 4, "mj-launcher": 1}
    with pytest.raises(GroupingRefused, match="can never form"):
        group(mpi_job(2, runPolicy={"schedulingPolicy": {"minAvailable": 9}}))


def runtime(*parts: Json, **spec: Any) -> Json:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "rt"},
        "spec": {"template": {"spec": {"replicatedJobs": list(parts)}}, **spec},
    }


def part(name: str, ancestor: str = "", **more: Any) -> Json:
    labels = {"trainer.kubeflow.org/trainjob-ancestor-step": ancestor} if ancestor else {}
    pod = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]}}
    return {"name": name, "template": {"metadata": {"labels": labels}, "spec": {"template": pod}}, **more}


def train_job(nodes: int) -> Json:
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "tj", "namespace": "default", "uid": "U"},
        "spec": {"runtimeRef": {"name": "rt"}, "trainer": {"numNodes": nodes}},
    }


def counts_of(job: Json, *related: Json) -> dict[str, Json]:
    found = group(job, related)
    assert found is not None and found.workload is not None
    spec = found.workload["spec"]
    templates = spec.get("podGroupTemplates") or spec["compositePodGroupTemplates"][0]["podGroupTemplates"]
    return {template["name"]: template["schedulingPolicy"] for template in templates}


def test_a_train_job_is_one_gang_of_its_world_size() -> None:
    torch = runtime(part("node", "trainer"), mlPolicy={"numNodes": 1, "torch": {}})
    assert counts_of(train_job(100), torch) == {"tj": {"gang": {"minCount": 100}}}


def test_an_mpi_train_job_counts_its_launcher() -> None:
    mpi = runtime(part("launcher"), part("node", "trainer"), mlPolicy={"mpi": {}})
    assert counts_of(train_job(4), mpi) == {"tj": {"gang": {"minCount": 5}}}
    entry = {"targetReplicatedJobs": ["launcher", "node"], "schedulingPolicy": {"gang": {}}}
    mpi["spec"]["scheduling"] = {"replicatedJobs": [entry]}
    assert counts_of(train_job(4), mpi) == {"launcher-node": {"gang": {"minCount": 5}}}
    announced = PROVIDERS["coscheduling"].pod_group(trainjob.replica_of(train_job(4), mpi, OWNER))
    assert announced is not None and announced["metadata"]["name"] == "tj" and announced["spec"]["minMember"] == 5


def test_steps_that_wait_for_others_are_groups_of_their_own() -> None:
    tune = runtime(
        part("dataset-initializer", "dataset-initializer"),
        part("node", "trainer", dependsOn=[{"name": "dataset-initializer", "status": "Complete"}]),
        mlPolicy={"torch": {}},
    )
    expected = {"dataset-initializer": {"basic": {}}, "node": {"gang": {"minCount": 8}}}
    assert counts_of(train_job(8), tune) == expected
    found = group(train_job(8), [tune])
    assert found is not None
    (parent,) = found.composites
    assert parent["spec"]["schedulingPolicy"] == {"basic": {}}
    above = {each["spec"]["parentCompositePodGroupName"] for each in found.groups}
    assert above == {parent["metadata"]["name"]}, "stages share a parent (KEP-6012)"
    alone = flat(found)
    assert not alone.composites and alone.workload is not None
    assert [template["name"] for template in alone.workload["spec"]["podGroupTemplates"]] == list(expected)


def test_the_launcher_and_the_nodes_after_an_initializer_are_one_gang() -> None:
    """The API design paper's TrainJob: the launcher must not start without its workers."""
    waits = {"dependsOn": [{"name": "dataset-initializer", "status": "Complete"}]}
    deepspeed = runtime(
        part("dataset-initializer", "dataset-initializer"),
        part("launcher", "trainer", **waits),
        part("node", **waits),
        mlPolicy={"numNodes": 10, "mpi": {"runLauncherAsNode": True, "numProcPerNode": 2}},
    )
    job = train_job(10)
    assert counts_of(job, deepspeed) == {
        "dataset-initializer": {"basic": {}},
        "launcher-node": {"gang": {"minCount": 10}},
    }
    found = group(job, [deepspeed])
    assert found is not None and found.links["launcher"].pod_group == found.links["node"].pod_group
    late = runtime(part("node", "trainer"), part("launcher", dependsOn=[{"name": "node", "status": "Ready"}]))
    assert counts_of(train_job(2), late) == {"node": {"gang": {"minCount": 2}}, "launcher": {"gang": {"minCount": 1}}}


def test_a_train_job_without_its_runtime_says_what_is_missing() -> None:
    with pytest.raises(GroupingRefused, match="ClusterTrainingRuntime 'rt' is needed"):
        group(train_job(2))


def test_each_job_of_a_cron_job_gets_its_own_workload() -> None:
    spec = {"parallelism": 2, "completions": 2, "scheduling": {"schedulingPolicy": {"gang": {}}}}
    spec["template"] = {"spec": {"containers": [{"name": "c"}]}}
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly", "namespace": "default", "uid": "U"},
        "spec": {"schedule": "@daily", "jobTemplate": {"spec": spec}},
    }
    found = group(cron)
    assert found is not None and found.workload is not None
    assert found.workload["spec"]["controllerRef"]["kind"] == "Job"
    assert found.groups[0]["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
