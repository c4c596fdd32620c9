"""JobSets and LeaderWorkerSets of their own controllers: `jobset-manager`, `lws-manager`.

Next to each program a folder, `jobset-crds` or `lws-crds`, has its definitions, and its webhooks in `webhooks.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.programs import program
from support.real_cluster import GANG, Json, Process, RealCluster, free_port, pod_template, serving_certificate
from support.waiting import eventually

JOBSETS, SETS = "/apis/jobset.x-k8s.io/v1alpha2", "/apis/leaderworkerset.x-k8s.io/v1"


def start_manager(cluster: RealCluster, name: str, api: str) -> Process:
    """Start the controller manager of a workload kind, with its webhooks; skip the test if anything is not there."""
    manager = program(f"{name}-manager")
    definitions = Path(manager).parent / f"{name}-crds"
    hooks = definitions / "webhooks.yaml"
    if not hooks.is_file():
        pytest.skip(f"the definitions and webhooks of {name} are not in {definitions}")
    directory, port = cluster.directory / name, free_port()
    directory.mkdir()
    bundle = serving_certificate(directory)
    config: Json = {
        "apiVersion": f"config.{api}/v1alpha1",
        "kind": "Configuration",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(directory)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
    }
    (directory / "config.yaml").write_text(yaml.safe_dump(config))
    cluster.define(definitions)
    process = Process(
        cluster.directory / f"{name}.log",
        manager,
        f"--config={directory / 'config.yaml'}",
        f"--kubeconfig={cluster.kubeconfig}",
    )
    cluster.parts.append(process)
    process.wait_for_log("Serving webhook server", 120)
    cluster.webhooks_of(hooks, port, bundle)
    return process


@pytest.fixture(scope="module")
def whole(real: RealCluster) -> Iterator[RealCluster]:
    """With kube-controller-manager and all parts of ours."""
    real.start_controller_manager()
    real.start("scheduler")
    real.webhook_at(real.start("controllers"))
    yield real


def groups(cluster: RealCluster, space: str) -> list[Json]:
    return cluster.items(f"{cluster.group_api}/namespaces/{space}/podgroups")


def test_a_jobset_is_one_gang(whole: RealCluster) -> None:
    start_manager(whole, "jobset", "jobset.x-k8s.io")
    space = whole.namespace("jobsets")
    jobs = [
        {"name": name, "replicas": replicas, "template": {"spec": {"parallelism": size, "completions": size,
                                                                   "template": pod_template()}}}
        for name, replicas, size in (("driver", 1, 1), ("workers", 2, 3))
    ]  # fmt: skip
    body = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "train", "annotations": GANG},
        "spec": {"replicatedJobs": jobs},
    }
    whole.create(f"{JOBSETS}/namespaces/{space}/jobsets", body)
    eventually(lambda: len(whole.bound(space)) == 7, "its seven pods are bound", 120)
    (group,) = groups(whole, space)
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 7}}
    assert {pod["spec"]["schedulerName"] for pod in whole.pods(space)} == {"phalanx"}
    assert whole.broken() == []
    assert whole.forbidden() == []


def test_each_replica_of_a_leader_worker_set_is_a_gang(whole: RealCluster) -> None:
    start_manager(whole, "lws", "lws.x-k8s.io")
    space = whole.namespace("sets")
    pods = {"spec": {**pod_template()["spec"], "restartPolicy": "Always"}}
    body = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "serve", "annotations": GANG},
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": pods}},
    }
    whole.create(f"{SETS}/namespaces/{space}/leaderworkersets", body)
    eventually(lambda: len(whole.bound(space)) == 6, "its six pods are bound", 120)
    policies = [group["spec"]["schedulingPolicy"] for group in groups(whole, space)]
    assert policies == [{"gang": {"minCount": 3}}] * 2
    assert whole.broken() == []
    assert whole.forbidden() == []
