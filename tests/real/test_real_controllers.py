"""Together with kube-controller-manager and kube-scheduler, where they are at hand."""

from __future__ import annotations

import pytest

from support.programs import program
from support.real_cluster import GANG, GATES, Process, RealCluster, pod_template
from support.waiting import eventually


@pytest.fixture(scope="module")
def whole(real: RealCluster) -> RealCluster:
    """With kube-controller-manager and all parts of ours."""
    real.start_controller_manager()
    real.start("scheduler")
    real.webhook_at(real.start("controllers"))
    return real


def create_job(cluster: RealCluster, space: str, name: str, size: int, annotations: dict[str, str]) -> None:
    spec = {"parallelism": size, "completions": size, "completionMode": "Indexed", "template": pod_template()}
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "annotations": annotations},
        "spec": spec,
    }
    cluster.create(f"/apis/batch/v1/namespaces/{space}/jobs", body)


def test_a_gang_job_is_linked_by_the_webhook_and_bound_whole(whole: RealCluster) -> None:
    space = whole.namespace("jobs")
    create_job(whole, space, "train", 4, GANG)
    eventually(lambda: len(whole.bound(space)) == 4, "the pods of the Job are bound")
    (group,) = whole.items(f"{whole.group_api}/namespaces/{space}/podgroups")
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 4}}
    for pod in whole.pods(space):
        assert pod["spec"]["schedulerName"] == "phalanx"  # only the webhook can set it
    whole.ask("DELETE", f"/apis/batch/v1/namespaces/{space}/jobs/train?propagationPolicy=Background")
    for pod in whole.pods(space):  # no kubelet ends them
        path = f"/api/v1/namespaces/{space}/pods/{pod['metadata']['name']}"
        whole.ask("PATCH", path, {"metadata": {"finalizers": None}}, kind="application/merge-patch+json")
        whole.ask("DELETE", f"{path}?gracePeriodSeconds=0")
    eventually(lambda: not whole.items(f"{whole.group_api}/namespaces/{space}/podgroups"), "its groups are collected")
    assert whole.forbidden() == []


def test_a_workload_that_asks_for_nothing_is_not_changed(whole: RealCluster) -> None:
    space = whole.namespace("plain")
    create_job(whole, space, "plain", 2, {})
    eventually(lambda: len(whole.pods(space)) == 2, "its pods exist")
    assert {pod["spec"]["schedulerName"] for pod in whole.pods(space)} == {"default-scheduler"}
    assert whole.bound(space) == []  # no kube-scheduler runs
    assert whole.items(f"{whole.group_api}/namespaces/{space}/podgroups") == []


def test_kube_scheduler_places_its_own_pods_and_we_ours(whole: RealCluster) -> None:
    space = whole.namespace("both")
    config = whole.directory / "kube-scheduler.yaml"
    config.write_text(
        "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
        f"leaderElection: {{leaderElect: false}}\nclientConnection: {{kubeconfig: {whole.kubeconfig}}}\n"
    )
    gates = [f"--feature-gates={GATES}"] if whole.groups else []
    theirs = Process(
        whole.directory / "kube-scheduler.log",
        program("kube-scheduler"),
        f"--config={config}",
        "--secure-port=0",
        *gates,
    )
    whole.parts.append(theirs)
    create_job(whole, space, "theirs", 3, {})
    create_job(whole, space, "ours", 3, GANG)
    eventually(lambda: len(whole.bound(space)) == 6, "both Jobs are bound")
    by_scheduler = {pod["metadata"]["labels"]["job-name"]: pod["spec"]["schedulerName"] for pod in whole.pods(space)}
    assert by_scheduler == {"theirs": "default-scheduler", "ours": "phalanx"}
    assert whole.broken() == []
    assert whole.forbidden() == []
