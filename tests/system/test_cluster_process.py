"""`phalanx controllers --mode cluster` and `phalanx scheduler` as users run them: processes of their own, over TLS."""

from __future__ import annotations

import base64
import json
import re
import signal
import ssl
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from phalanx.model.crds import definitions
from phalanx.model.gates import KNOWN
from support.cluster_mode import LABEL, gang_job, review
from support.local_cluster import LocalCluster
from support.processes import PHALANX, started
from support.waiting import eventually

PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def old_cluster(start_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    """A cluster with controllers, nodes and a scheduler of its own that has never heard of groups."""
    cluster = start_cluster(gates=",".join(f"{gate}=false" for gate in KNOWN), nodes=4)
    for definition in definitions():
        cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    return cluster


@pytest.fixture
def beside_it(old_cluster: LocalCluster) -> Iterator[str]:
    """Both parts; the address of the webhook."""
    kubeconfig = str(old_cluster.kubeconfig)
    scheduler, _ = started(
        "scheduler", "--kubeconfig", kubeconfig, "--scheduler-name", "phalanx", "--health", "127.0.0.1:0"
    )
    controllers, line = started(
        *("controllers", "--mode", "cluster", "--kubeconfig", kubeconfig, "--namespace", "kube-system"),
        *("--scheduler-name", "phalanx", "--webhook-listen", "127.0.0.1:0", "--webhook-host", "localhost"),
        *("--health", "127.0.0.1:0"),
    )
    found = re.search(r"webhook=(\S+) health=(\S+)", line)
    assert found, line
    try:
        with urllib.request.urlopen(f"{found[2]}/readyz", timeout=10) as reply:
            assert reply.status == 200
        yield found[1].replace("127.0.0.1", "localhost")
    finally:
        codes = []
        for process in (controllers, scheduler):
            process.send_signal(signal.SIGTERM)
            codes.append(process.wait(30))
    assert codes == [0, 0]


def test_two_processes_beside_a_cluster(old_cluster: LocalCluster, beside_it: str) -> None:
    made = old_cluster.create("/apis/batch/v1/namespaces/default/jobs", gang_job("train", 3))
    groups = "/apis/scheduling.phalanx.dev/v1beta1/namespaces/default/podgroups"
    (group,) = eventually(lambda: old_cluster.get(groups)["items"], "a PodGroup")
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
    # No webhook is called by this server: pods are labelled afterwards.
    pods = eventually(
        lambda: [pod for pod in old_cluster.get(PODS)["items"] if LABEL in (pod["metadata"].get("labels") or {})][:3],
        "labels on pods",
    )
    assert {pod["metadata"]["labels"][LABEL] for pod in pods} == {group["metadata"]["name"]}
    secret = old_cluster.get("/api/v1/namespaces/kube-system/secrets/phalanx-webhook-tls")
    trust = ssl.create_default_context(cadata=base64.b64decode(secret["data"]["ca.crt"]).decode())
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": made["metadata"]["uid"]}
    pod = {"metadata": {"name": "p", "ownerReferences": [{**reference, "controller": True}]}, "spec": {}}
    request = urllib.request.Request(f"{beside_it}/mutate-pods", json.dumps(review(pod)).encode())
    with urllib.request.urlopen(request, timeout=10, context=trust) as reply:
        response = json.loads(reply.read())["response"]
    assert group["metadata"]["name"] in base64.b64decode(response["patch"]).decode()
    lease = old_cluster.get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/phalanx-controllers")
    assert lease["spec"]["holderIdentity"]


@pytest.mark.parametrize("option", [("--scheduler-name", "x"), ("--webhook-listen", "127.0.0.1:0"), ("--tls-dir", ".")])
def test_options_of_cluster_mode_need_it(option: tuple[str, str]) -> None:
    ended = subprocess.run([*PHALANX, "controllers", *option], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2 and "--mode cluster" in ended.stderr


def test_a_directory_without_a_certificate_is_named(old_cluster: LocalCluster, tmp_path: Any) -> None:
    arguments = ("--mode", "cluster", "--kubeconfig", str(old_cluster.kubeconfig), "--tls-dir", str(tmp_path))
    ended = subprocess.run(
        [*PHALANX, "controllers", *arguments, "--webhook-listen", "127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 2 and "tls.crt" in ended.stderr
