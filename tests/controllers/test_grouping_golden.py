"""The worked examples of the reference: the same workload gives exactly these objects."""

from __future__ import annotations

import hashlib
from typing import Any

import yaml

from phalanx.controllers.workloads.jobset.jobs import keys_of
from phalanx.controllers.workloads.registry import group
from support.manifests import GANG_POLICY, job, jobset, part

A, B = "replicated-job-1", "replicated-job-2"
WORKLOAD = "sample-jobset-3c10becfc2"
OWNER = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "name": "sample-jobset",
    "uid": "JSUID",
    "controller": True,
    "blockOwnerDeletion": True,
}
REF = {"apiGroup": "jobset.x-k8s.io", "kind": "JobSet", "name": "sample-jobset"}


def g1(**spec: Any) -> Any:
    return group(jobset("sample-jobset", part(A, 2, 4), part(B, 2, 4), uid="JSUID", **spec))


def g2(first: Any = None, second: Any = None, **spec: Any) -> Any:
    one, two = part(A, 2, 4), part(B, 1, 3)
    return group(jobset("sample-jobset", {**one, **(first or {})}, {**two, **(second or {})}, uid="JSUID", **spec))


def g3(mode: Any = None, **spec: Any) -> Any:
    one, two = part(A, 2, 4), part(B, 3, 3)
    return group(jobset("sample-jobset", {**one, **(mode or {})}, {**two, **(mode or {})}, uid="JSUID", **spec))


def templates(grouping: Any) -> dict[str, int]:
    return {
        t["name"]: t["schedulingPolicy"]["gang"]["minCount"] for t in grouping.workload["spec"]["podGroupTemplates"]
    }


def names(objects: Any) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]


# -- KEP-1068: gangConfig ---------------------------------------------------------------------------------------------


def seed_workload(*groups: tuple[str, int]) -> Any:
    return {
        "apiVersion": "scheduling.k8s.io/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": "w-sample-jobset", "namespace": "default", "ownerReferences": [OWNER]},
        "spec": {
            "controllerRef": REF,
            "podGroups": [{"name": name, "policy": {"gang": {"minCount": count}}} for name, count in groups],
        },
    }


def pod_link(grouping: Any, job_name: str) -> Any:
    spec: dict[str, Any] = {}
    grouping.links[job_name].put_on(spec)
    return spec


def test_a_gang_of_the_whole_jobset() -> None:
    found = g1(gangConfig={"gangMode": "Gang"})
    assert found.objects == [seed_workload(("pg-sample-jobset", 16))]
    assert len(found.links) == 4
    for name in found.links:
        assert pod_link(found, name) == {"workloadRef": {"name": "w-sample-jobset", "podGroup": "pg-sample-jobset"}}


def test_a_gang_for_each_replicated_job() -> None:
    mode = {"gangConfig": {"gangMode": "Gang"}}
    after = {"dependsOn": [{"name": A, "status": "Complete"}]}
    found = g2(mode, {**mode, **after})
    assert found.objects == [seed_workload((f"pg-{A}", 8), (f"pg-{B}", 3))]
    assert pod_link(found, f"sample-jobset-{B}-0") == {
        "workloadRef": {"name": "w-sample-jobset", "podGroup": f"pg-{B}"}
    }


def test_a_gang_for_each_job_replica() -> None:
    found = g3({"gangConfig": {"gangMode": "ReplicatedGang"}})
    assert found.objects == [seed_workload((f"pg-{A}", 4), (f"pg-{B}", 3))]
    reference = {"name": "w-sample-jobset", "podGroup": f"pg-{A}", "podGroupReplicaKey": "1"}
    assert pod_link(found, f"sample-jobset-{A}-1") == {"workloadRef": reference}


# -- KEP-969: spec.scheduling -----------------------------------------------------------------------------------------


def test_top_level_gang() -> None:
    found = g1(scheduling=GANG_POLICY)
    assert found.workload == {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": WORKLOAD, "namespace": "default", "ownerReferences": [OWNER]},
        "spec": {
            "controllerRef": REF,
            "podGroupTemplates": [{"name": WORKLOAD, "schedulingPolicy": {"gang": {"minCount": 16}}}],
        },
    }
    assert found.groups == [
        {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": WORKLOAD, "namespace": "default", "ownerReferences": [OWNER]},
            "spec": {
                "workloadRef": {"workloadName": WORKLOAD, "templateName": WORKLOAD},
                "schedulingPolicy": {"gang": {"minCount": 16}},
            },
        }
    ]
    assert {link.pod_group for link in found.links.values()} == {WORKLOAD}
    assert {link.template for link in found.links.values()} == {WORKLOAD}


def test_an_entry_for_each_replicated_job() -> None:
    jobs = [{"targetReplicatedJobs": [A]}, {"targetReplicatedJobs": [B], **GANG_POLICY}]
    found = g2(scheduling={"replicatedJobs": jobs})
    assert templates(found) == {f"{A}-1e925ba1ab": 8, f"{B}-0dcf40db2f": 3}
    assert names(found.groups) == [f"sample-jobset-{A}-1e925ba1ab", f"sample-jobset-{B}-0dcf40db2f"]


def test_parts_that_start_in_turn_are_gangs_of_their_own() -> None:
    found = g2(second={"dependsOn": [{"name": A, "status": "Complete"}]}, scheduling=GANG_POLICY)
    assert templates(found) == {f"{A}-aa9dbddf47": 8, f"{B}-356e6d4702": 3}
    in_order = g2(startupPolicy={"startupPolicyOrder": "InOrder"}, scheduling=GANG_POLICY)
    assert templates(in_order) == templates(found)
    assert names(found.groups) == [f"sample-jobset-{A}-aa9dbddf47", f"sample-jobset-{B}-356e6d4702"]


def test_one_entry_for_two_replicated_jobs() -> None:
    found = g1(scheduling={"replicatedJobs": [{"targetReplicatedJobs": [A, B], **GANG_POLICY}]})
    assert templates(found) == {f"{A}-{B}-a27a5eb978": 16}


def test_a_group_for_each_job() -> None:
    found = g3(scheduling={"replicatedJobs": [{"targetReplicatedJobs": [n], "job": GANG_POLICY} for n in (A, B)]})
    assert templates(found) == {
        f"{A}-0-282387771b": 4,
        f"{A}-1-d58d414d91": 4,
        f"{B}-0-cdbf6d56bb": 3,
        f"{B}-1-5fcedcc584": 3,
        f"{B}-2-08796f92cb": 3,
    }
    assert names(found.groups) == [f"sample-jobset-{name}" for name in templates(found)]
    assert found.links[f"sample-jobset-{B}-2"].template == f"{B}-2-08796f92cb"
    assert found.groups[-1]["spec"] == {
        "workloadRef": {"workloadName": WORKLOAD, "templateName": f"{B}-2-08796f92cb"},
        "schedulingPolicy": {"gang": {"minCount": 3}},
    }


def test_top_level_basic_is_a_basic_group_for_each_replicated_job() -> None:
    found = g1(scheduling={"schedulingPolicy": {"basic": {}}})
    assert [obj["spec"]["schedulingPolicy"] for obj in found.groups] == [{"basic": {}}] * 2


# -- KEP-6012: the tree -----------------------------------------------------------------------------------------------

TREE = f"""
apiVersion: scheduling.k8s.io/v1beta1
kind: Workload
metadata: {{name: {WORKLOAD}, namespace: default}}
spec:
  controllerRef: {{apiGroup: jobset.x-k8s.io, kind: JobSet, name: sample-jobset}}
  compositePodGroupTemplates:
  - name: jobset-root
    schedulingPolicy: {{gang: {{minGroupCount: 2}}}}
    disruptionMode: &all {{all: {{}}}}
    compositePodGroupTemplates:
    - name: replicated-job-1
      schedulingPolicy: {{gang: {{minGroupCount: 2}}}}
      disruptionMode: *all
      podGroupTemplates:
      - {{name: replicated-job-1-job, schedulingPolicy: {{gang: {{minCount: 4}}}}, disruptionMode: *all}}
    - name: replicated-job-2
      schedulingPolicy: {{gang: {{minGroupCount: 3}}}}
      disruptionMode: *all
      podGroupTemplates:
      - {{name: replicated-job-2-job, schedulingPolicy: {{gang: {{minCount: 3}}}}, disruptionMode: *all}}
"""


def test_the_tree_of_sets_parts_and_jobs() -> None:
    found = g3(annotations={"scheduling.phalanx.dev/group-tree": "Job"})
    wanted = yaml.safe_load(TREE)
    wanted["metadata"]["ownerReferences"] = [OWNER]
    assert found.workload == wanted
    assert names(found.composites) == ["sample-jobset", f"sample-jobset-{A}", f"sample-jobset-{B}"]
    assert names(found.groups) == [f"sample-jobset-{A}-{i}" for i in (0, 1)] + [
        f"sample-jobset-{B}-{i}" for i in (0, 1, 2)
    ]
    assert found.composites[1]["spec"] == {
        "parentCompositePodGroupName": "sample-jobset",
        "workloadRef": {"workloadName": WORKLOAD, "templateName": A},
        "schedulingPolicy": {"gang": {"minGroupCount": 2}},
        "disruptionMode": {"all": {}},
    }
    assert found.groups[0]["spec"] == {
        "parentCompositePodGroupName": f"sample-jobset-{A}",
        "workloadRef": {"workloadName": WORKLOAD, "templateName": f"{A}-job"},
        "schedulingPolicy": {"gang": {"minCount": 4}},
        "disruptionMode": {"all": {}},
    }


def test_a_tree_with_replicated_jobs_as_leaves() -> None:
    found = g1(annotations={"scheduling.phalanx.dev/group-tree": "ReplicatedJob"})
    (root,) = found.workload["spec"]["compositePodGroupTemplates"]
    assert root["schedulingPolicy"] == {"gang": {"minGroupCount": 2}}
    assert [(t["name"], t["schedulingPolicy"]["gang"]["minCount"]) for t in root["podGroupTemplates"]] == [
        (A, 8),
        (B, 8),
    ]


def test_the_root_of_a_tree_that_starts_in_turn_is_no_gang() -> None:
    after = {"dependsOn": [{"name": A, "status": "Complete"}]}
    found = g2(second=after, annotations={"scheduling.phalanx.dev/group-tree": "Job"})
    assert found.composites[0]["spec"]["schedulingPolicy"] == {"basic": {}}


# -- Job --------------------------------------------------------------------------------------------------------------


def test_the_objects_of_a_job() -> None:
    for name, uid, workload, podgroup in (
        ("test-job", "test-job-uid", "test-job-6ff4fbf9db", "test-job-6ff4fbf9db-test-job-pgt-0-5cdc87fdc8"),
        ("my-job", "uid-123", "my-job-795ddf89fd", "my-job-795ddf89fd-my-job-pgt-0-74cffdfb57"),
    ):
        found = group(job(name, 4, uid=uid, scheduling=GANG_POLICY))
        assert found is not None and found.workload is not None
        assert found.workload["metadata"]["name"] == workload
        assert found.workload["spec"] == {
            "controllerRef": {"apiGroup": "batch", "kind": "Job", "name": name},
            "podGroupTemplates": [{"name": f"{name}-pgt-0", "schedulingPolicy": {"gang": {"minCount": 4}}}],
        }
        assert names(found.groups) == [podgroup]
        assert pod_link(found, "") == {"schedulingGroup": {"podGroupName": podgroup}}


def test_keys_on_jobs_and_pods_of_a_jobset() -> None:
    jobset_object = jobset("sample-jobset", part(A, 2, 4), part(B, 3, 3), uid="JSUID")
    keys = keys_of(jobset_object, jobset_object["spec"]["replicatedJobs"][1], 2, 5, None)
    prefix = "jobset.sigs.k8s.io/"
    assert {name.removeprefix(prefix): value for name, value in keys.items()} == {
        "jobset-name": "sample-jobset",
        "jobset-uid": "JSUID",
        "replicatedjob-name": B,
        "replicatedjob-replicas": "3",
        "global-replicas": "5",
        "job-index": "2",
        "job-global-index": "4",
        "job-key": hashlib.sha1(f"default/sample-jobset-{B}-2".encode()).hexdigest(),
        "group-name": "default",
        "group-replicas": "5",
        "job-group-index": "4",
        "restart-attempt": "5",
    }
    first = keys_of(jobset_object, jobset_object["spec"]["replicatedJobs"][0], 0, 0, None)
    assert first[f"{prefix}job-key"] == "058db9bc4cfccc92a439849690433f37286577ce"
