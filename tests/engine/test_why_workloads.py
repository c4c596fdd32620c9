"""`phalanx why KIND/NAME` of a workload: its groups or pods, or why it has none."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from support.asked_cluster import GROUPS, PODS, Json, Phalanx, condition, put
from support.local_cluster import LocalCluster
from support.manifests import pod, pod_group


@pytest.fixture
def phalanx(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Phalanx:
    return Phalanx(capsys, monkeypatch)


@pytest.fixture(scope="module")
def up(start_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    return start_cluster(nodes=8, topology="blocks=2,racks=4,gpus=8")


def test_a_workload_is_answered_for_by_its_groups(up: LocalCluster, phalanx: Phalanx) -> None:
    """Asking about what one wrote: the groups made for it, and a clear word where there are none."""
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    template = {"spec": {**pod("x", gpus=8)["spec"], "restartPolicy": "Never"}}
    gang = {"schedulingPolicy": {"gang": {}}}
    spec = {"parallelism": 9, "completions": 9, "scheduling": gang, "template": template}
    up.create(jobs, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "mine"}, "spec": spec})
    with up.watch(GROUPS) as watch:
        while not (event := watch.next())[1]["metadata"]["name"].startswith("mine-"):
            pass
    group_name = event[1]["metadata"]["name"]
    condition(up, GROUPS, group_name, "False")
    here = ("--kubeconfig", str(up.kubeconfig))
    assert f"podgroup/{group_name} in default: pending" in phalanx("why", "job/mine", *here, code=1)
    assert f"podgroup/default/{group_name}: " in phalanx("plan", "job/mine", *here, code=1)
    assert f"podgroup/{group_name} in default: pending" in phalanx("why", "job", "mine", *here, code=1)
    assert f"podgroup/{group_name} in default: pending" in phalanx("why", "pg", group_name, *here, code=1)
    missing = phalanx("why", "jobs/other", *here, code=2)
    assert "error: there is no Job other in default; see kubectl get jobs" in missing
    assert "there is no Job mien in default (did you mean mine?)" in phalanx("why", "job/mien", *here, code=2)
    assert f"no PodGroup default/mine (did you mean {group_name}?)" in phalanx("why", "pg/mine", *here, code=2)
    assert "Usage" not in missing  # the command was right
    assert "there is no namespace 'nowhere'" in phalanx("why", "job/mine", "-n", "nowhere", *here, code=2)
    assert "there is one in default: add -n default" in phalanx("why", "job/mine", "-n", "kube-system", *here, code=2)
    assert "one thing at a time" in phalanx("why", "job/mine", "job/other", *here, code=2)
    up.delete(f"{jobs}/mine", propagationPolicy="Background")


def test_a_suspended_job_and_one_over_its_quota_say_so(up: LocalCluster, phalanx: Phalanx) -> None:
    here = ("--kubeconfig", str(up.kubeconfig), "-n", "limited")
    jobs = "/apis/batch/v1/namespaces/limited/jobs"
    up.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "limited"}})
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}}
    up.create("/api/v1/namespaces/limited/resourcequotas", quota)
    template = {"spec": {**pod("x", gpus=1)["spec"], "restartPolicy": "Never"}}
    for name, suspend in (("sleeping", True), ("large", False)):
        spec = {"completions": 2, "parallelism": 2, "suspend": suspend, "template": template}
        up.create(jobs, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
    events = "/api/v1/namespaces/limited/events"
    up.wait(events, lambda found: any(event["reason"] == "FailedCreate" for event in found["items"]))
    text = phalanx("why", "job/sleeping", *here, code=1)
    assert text.startswith(
        "job/sleeping in limited: pending\n  Is suspended (spec.suspend); `kubectl patch job/sleeping"
    )
    assert '{"spec": {"suspend": false}}' in text
    assert (
        json.loads(phalanx("why", "job/sleeping", *here, "-o", "json", code=1))["items"][0]["items"][0]["headline"]
        in text
    )
    text = phalanx("why", "job/large", *here, code=1)
    assert "Its pods cannot be created" in text and "exceeded quota: few" in text
    gang: Json = {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}
    gang["scheduling"] = {"schedulingPolicy": {"gang": {}}}
    gang["template"] = {"spec": {**template["spec"], "priorityClassName": "nonesuch"}}
    up.create(jobs, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "ranked"}, "spec": gang})
    up.wait(events, lambda found: any(event["reason"] == "FailedWorkloadCreate" for event in found["items"]))
    text = phalanx("why", "job/ranked", *here, code=1)
    assert "no PriorityClass with name nonesuch was found" in text
    labels = {"app": "web"}
    web: Json = {"replicas": 2, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}
    web["template"]["spec"] = pod("x", gpus=1)["spec"]
    sets = "/apis/apps/v1/namespaces/limited/replicasets"
    up.create(sets, {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "web"}, "spec": web})
    up.wait(events, lambda found: any('"web-' in event["message"] for event in found["items"]))
    text = phalanx("why", "replicaset/web", *here, code=1)
    assert "Its pods cannot be created" in text and "asks for no group" not in text
    up.delete("/api/v1/namespaces/limited")


def test_a_paused_rollout_is_named_with_the_command_that_resumes_it(up: LocalCluster, phalanx: Phalanx) -> None:
    here = ("--kubeconfig", str(up.kubeconfig))
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    labels = {"app": "halted"}
    spec: Json = {"replicas": 2, "paused": True, "selector": {"matchLabels": labels}}
    spec["template"] = {"metadata": {"labels": labels}, "spec": pod("x", gpus=1)["spec"]}
    body: Json = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "halted"}, "spec": spec}
    up.create(deployments, body)
    resume = "`kubectl rollout resume deployments/halted -n default` resumes it"
    text = phalanx("why", "deploy/halted", *here, code=1)
    assert f"Its rollout is paused (spec.paused), so it has no pods of its current template; {resume}" in text
    assert "has no groups" not in text and "asks for no group" not in text
    up.delete(f"{deployments}/halted")


def test_a_deployment_that_asks_for_no_group_does_not_blame_its_own_condition(
    up: LocalCluster, phalanx: Phalanx
) -> None:
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    labels = {"app": "huge"}
    spec: Json = {"replicas": 1, "selector": {"matchLabels": labels}}
    spec["template"] = {"metadata": {"labels": labels}, "spec": pod("x", gpus=99)["spec"]}
    body: Json = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "huge"}, "spec": spec}
    up.create(deployments, body)
    path = f"{deployments}/huge"
    up.wait(path, lambda found: (found.get("status") or {}).get("conditions"))
    up.wait(PODS, lambda found: any(each["metadata"]["name"].startswith("huge-") for each in found["items"]))
    text = phalanx("why", "deployment/huge", "--kubeconfig", str(up.kubeconfig), code=1)
    assert "MinimumReplicasUnavailable" not in text and "asks for no group" in text
    assert "the largest node has 8: this can never fit" in text
    up.delete(path, propagationPolicy="Background")


def test_a_workload_without_groups_is_answered_for_by_its_pods(up: LocalCluster, phalanx: Phalanx) -> None:
    replica_sets = "/apis/apps/v1/namespaces/default/replicasets"
    labels = {"app": "plain"}
    spec = {
        "replicas": 5,
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod("x", gpus=99)["spec"]},
    }
    up.create(
        replica_sets, {"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "plain"}, "spec": spec}
    )
    up.wait(PODS, lambda found: sum(pod["metadata"]["name"].startswith("plain-") for pod in found["items"]) == 5)
    text = phalanx("why", "replicaset/plain", "--kubeconfig", str(up.kubeconfig), code=1)
    assert "asks for no group: its pods are placed one by one" in text
    assert "5 of its pods wait; the first 3:" in text and text.count("in default: pending") == 3
    up.delete(f"{replica_sets}/plain", propagationPolicy="Background")


def test_pods_that_a_workload_has_through_other_objects_are_found(up: LocalCluster, phalanx: Phalanx) -> None:
    """A JobSet has them through its Jobs, a LeaderWorkerSet through its StatefulSets."""
    template = {"spec": {**pod("x", gpus=99)["spec"], "restartPolicy": "Never"}}
    job = {"spec": {"parallelism": 1, "completions": 1, "template": template}}
    paths = (
        "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets",
        "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets",
    )
    up.create(
        paths[0],
        {
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": "loose"},
            "spec": {"replicatedJobs": [{"name": "w", "replicas": 1, "template": job}]},
        },
    )
    up.create(
        paths[1],
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "loose"},
            "spec": {"leaderWorkerTemplate": {"size": 2, "workerTemplate": pod("x", gpus=99)}},
        },
    )
    up.wait(PODS, lambda found: sum(pod["metadata"]["name"].startswith("loose-") for pod in found["items"]) == 3)
    for what, pods in (("jobset/loose", 1), ("leaderworkerset/loose", 2)):
        text = phalanx("why", what, "--kubeconfig", str(up.kubeconfig), code=1)
        assert text.count("in default: pending") == pods, text
    for path in paths:
        up.delete(f"{path}/loose", propagationPolicy="Background")


def test_a_cronjob_that_has_no_job_says_so(up: LocalCluster, phalanx: Phalanx) -> None:
    template = {"spec": {**pod("x", gpus=99)["spec"], "restartPolicy": "Never"}}
    spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}}
    jobs = "/apis/batch/v1/namespaces/default/cronjobs"
    up.create(jobs, {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "yearly"}, "spec": spec})
    text = phalanx("why", "cronjob/yearly", "--kubeconfig", str(up.kubeconfig), code=0)
    assert "cronjob/yearly in default has no Job at the moment" in text
    up.delete(f"{jobs}/yearly")


def test_a_job_that_has_failed_is_not_pending(up: LocalCluster, phalanx: Phalanx) -> None:
    """Every deleted pod of a preempted gang counts as failed; the answer was "pending, not queued"."""
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    template = {"spec": {**pod("x", gpus=99)["spec"], "restartPolicy": "Never"}}
    spec = {"completions": 8, "parallelism": 8, "completionMode": "Indexed", "backoffLimit": 0, "template": template}
    spec["scheduling"] = {"schedulingPolicy": {"gang": {}}}
    up.create(jobs, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "over"}, "spec": spec})
    mine = up.wait(PODS, lambda found: sum(p["metadata"]["name"].startswith("over-") for p in found["items"]) == 8)
    first = next(p["metadata"]["name"] for p in mine["items"] if p["metadata"]["name"].startswith("over-"))
    up.delete(f"{PODS}/{first}")
    up.wait(f"{jobs}/over", lambda job: any(c["type"] == "Failed" for c in job["status"].get("conditions") or ()))
    text = phalanx("why", "job/over", "--kubeconfig", str(up.kubeconfig), code=0)
    assert "job/over in default has ended" in text and "Failed, BackoffLimitExceeded" in text
    assert "podFailurePolicy" in text and "pending" not in text
    up.delete(f"{jobs}/over", propagationPolicy="Background")


def test_a_job_whose_template_names_a_group_is_answered_for_by_that_group(up: LocalCluster, phalanx: Phalanx) -> None:
    """KEP-4671's own example: the template has a workloadRef, and the Workload has no controllerRef."""
    here = ("--kubeconfig", str(up.kubeconfig))
    jobs = "/apis/batch/v1/namespaces/default/jobs"
    workload = {
        "apiVersion": "scheduling.k8s.io/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": "job-1"},
        "spec": {"podGroups": [{"name": "pg1", "policy": {"gang": {"minCount": 100}}}]},
    }
    up.create("/apis/scheduling.k8s.io/v1alpha1/namespaces/default/workloads", workload)
    put(up, pod_group("by-hand", 7))
    for name, link in (
        ("job-1", {"workloadRef": {"name": "job-1", "podGroup": "pg1"}}),
        ("job-2", {"schedulingGroup": {"podGroupName": "by-hand"}}),
    ):
        template = {"spec": {**pod("x", gpus=1)["spec"], "restartPolicy": "Never", **link}}
        spec = {"completions": 2, "parallelism": 2, "completionMode": "Indexed", "template": template}
        up.create(jobs, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
        up.wait(PODS, lambda found, name=name: sum(p["metadata"]["name"].startswith(name) for p in found["items"]) == 2)
    text = phalanx("why", "job/job-1", *here, code=1)
    assert "asks for no group" not in text
    assert "job-1/pg1 has 2 of 100" in text and text.count("in default: ") == 1  # one answer, of the gang
    text = phalanx("why", "job/job-2", *here, code=1)
    assert "podgroup/by-hand in default: pending" in text and "asks for no group" not in text
    for name in ("job-1", "job-2"):
        up.delete(f"{jobs}/{name}", propagationPolicy="Background")


def test_a_set_whose_workload_is_ignored_says_so(up: LocalCluster, phalanx: Phalanx) -> None:
    here = ("--kubeconfig", str(up.kubeconfig))
    sets, labels = "/apis/apps/v1/namespaces/default/statefulsets", {"app": "aside"}
    template = {"metadata": {"labels": labels}, "spec": pod("x", gpus=0)["spec"]}
    spec = {"replicas": 2, "podManagementPolicy": "Parallel", "selector": {"matchLabels": labels}, "template": template}
    up.create(sets, {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "aside"}, "spec": spec})
    reference = {"apiGroup": "apps", "kind": "StatefulSet", "name": "aside"}
    spec = {
        "controllerRef": reference,
        "podGroupTemplates": [{"name": "w", "schedulingPolicy": {"gang": {"minCount": 2}}}],
    }
    workloads = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/workloads"
    body = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "Workload", "metadata": {"name": "aside"}, "spec": spec}
    up.create(workloads, body)
    up.wait(PODS, lambda found: sum(p["metadata"]["name"].startswith("aside") for p in found["items"]) == 2)
    up.wait(
        "/api/v1/namespaces/default/events",
        lambda found: any(e.get("reason") == "WorkloadIgnored" for e in found["items"]),
    )
    text = phalanx("why", "statefulset/aside", *here, code=1)
    assert "statefulset/aside in default has no groups: WorkloadIgnored: Workload aside is about" in text
    assert "workload/aside in default: no pod refers to it yet" in phalanx("why", "workload/aside", *here, code=1)
    up.delete(f"{sets}/aside", propagationPolicy="Background")
    up.delete(f"{workloads}/aside")


def test_a_workload_that_was_not_looked_at_yet_is_not_said_to_ask_for_nothing(
    start_cluster: Callable[..., LocalCluster], phalanx: Phalanx
) -> None:
    cluster = start_cluster(run_controllers=False, run_nodes=False)
    spec = {"template": {"spec": {**pod("x", gpus=8)["spec"], "restartPolicy": "Never"}}}
    body = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "new"}, "spec": spec}
    cluster.create("/apis/batch/v1/namespaces/default/jobs", body)
    text = phalanx("why", "job/new", "--kubeconfig", str(cluster.kubeconfig), code=0)
    assert "job/new in default has neither groups nor pods yet: no controller has come to it" in text


def test_a_set_whose_workload_does_not_fit_says_so_once(up: LocalCluster, phalanx: Phalanx) -> None:
    here = ("--kubeconfig", str(up.kubeconfig))
    sets, labels = "/apis/apps/v1/namespaces/default/statefulsets", {"app": "tall"}
    reference = {"apiGroup": "apps", "kind": "StatefulSet", "name": "tall"}
    spec: Json = {
        "controllerRef": reference,
        "podGroupTemplates": [{"name": "w", "schedulingPolicy": {"gang": {"minCount": 9}}}],
    }
    workloads = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/workloads"
    body = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "Workload", "metadata": {"name": "tall"}, "spec": spec}
    up.create(workloads, body)
    meta = {"name": "tall", "annotations": {"scheduling.phalanx.dev/gang": "true"}}
    template = {"metadata": {"labels": labels}, "spec": pod("x", gpus=0)["spec"]}
    spec = {"replicas": 2, "podManagementPolicy": "Parallel", "selector": {"matchLabels": labels}, "template": template}
    up.create(sets, {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec})
    events = "/api/v1/namespaces/default/events"
    up.wait(events, lambda found: any(e.get("reason") == "WorkloadDoesNotFit" for e in found["items"]))
    time.sleep(1.0)  # for the controller of the pods, which tries too
    text = phalanx("why", "statefulset/tall", *here, code=1)
    assert "statefulset/tall in default has no groups: WorkloadDoesNotFit: template 'w' of Workload tall" in text
    about = [e for e in up.get(events)["items"] if e["involvedObject"]["name"] == "tall" and e["type"] == "Warning"]
    assert {event["reason"] for event in about} == {"WorkloadDoesNotFit"}
    up.delete(f"{sets}/tall", propagationPolicy="Background")
    up.delete(f"{workloads}/tall")
