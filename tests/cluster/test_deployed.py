"""deploy/ as a cluster's administrator uses it: applied by kubectl to a cluster with RBAC, and run as it says.

The parts are the commands of the manifests, with the tokens of their service accounts; the API server calls the real
webhook through its Service. The audit log says what they were refused: nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from beside import LABEL, job
from rights import DEPLOY, documents
from test_cluster_process import PODS, start, until

from local_cluster import LocalCluster
from phalanx.model.gates import KNOWN

Json = dict[str, Any]
ACCOUNT = "system:serviceaccount:phalanx-system:"
KUBECTL = shutil.which("kubectl")


class Deployed:
    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self.cluster, self.directory = cluster, directory

    def kubectl(self, *arguments: str) -> str:
        environment = {**os.environ, "KUBECONFIG": str(self.cluster.kubeconfig), "HOME": str(self.directory)}
        done = subprocess.run([str(KUBECTL), *arguments], env=environment, text=True, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def kubeconfig(self, account: str) -> Path:
        """As its pod would have it: the token of its service account."""
        config = yaml.safe_load(self.cluster.kubeconfig.read_text())
        token = self.kubectl("create", "token", account, "--namespace", "phalanx-system").strip()
        config["users"][0]["user"] = {"token": token}
        file = self.directory / f"{account}.kubeconfig"
        file.write_text(yaml.safe_dump(config))
        return file

    def start(self, file: str, account: str) -> tuple[subprocess.Popen[str], str]:
        """The command of a manifest, listening where a test may."""
        container = documents(file)[0]["spec"]["template"]["spec"]["containers"][0]
        arguments = [re.sub(r"0\.0\.0\.0:\d+", "127.0.0.1:0", text) for text in container["args"]]
        return start(*arguments, "--kubeconfig", str(self.kubeconfig(account)))

    def audited(self) -> list[Json]:
        """What our parts asked for."""
        events = [json.loads(line) for line in (self.directory / "audit.log").read_text().splitlines()]
        ours = [event for event in events if event["user"].get("username", "").startswith(ACCOUNT)]
        return [event for event in ours if event["userAgent"].startswith("phalanx-")]


@pytest.fixture(scope="module")
def deployed(
    start_cluster: Callable[..., LocalCluster], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    if KUBECTL is None:
        pytest.skip("no kubectl on PATH")
    directory = tmp_path_factory.mktemp("deployed")
    off = ",".join(f"{gate}=false" for gate in KNOWN)
    cluster = start_cluster(gates=off, nodes=4, authorization="RBAC", audit_log=directory / "audit.log")
    made = Deployed(cluster, directory)
    made.kubectl("apply", "-f", str(DEPLOY))
    running = [made.start("30-scheduler.yaml", "phalanx-scheduler")]
    try:
        running.append(made.start("40-controllers.yaml", "phalanx-controllers"))
        found = re.search(r"webhook=https://127\.0\.0\.1:(\d+)", running[1][1])
        assert found, running[1][1]
        where = f"simulation.phalanx.dev/endpoint=127.0.0.1:{found[1]}"
        made.kubectl("annotate", "service", "phalanx-webhook", "--namespace", "phalanx-system", where)
        yield made
    finally:
        for process, _ in running:
            process.send_signal(signal.SIGTERM)
        for process, _ in running:
            process.communicate(timeout=30)


def test_a_gang_runs_on_a_cluster_where_deploy_was_applied(deployed: Deployed) -> None:
    cluster = deployed.cluster
    cluster.create("/apis/batch/v1/namespaces/default/jobs", job("train", 3))

    def running() -> list[Json]:
        pods = cluster.get(PODS)["items"]
        return pods if sum(pod["status"].get("phase") == "Running" for pod in pods) == 3 else []

    pods = until(running, "three running pods")
    (group,) = cluster.get("/apis/scheduling.phalanx.dev/v1beta1/namespaces/default/podgroups")["items"]
    assert {pod["metadata"]["labels"][LABEL] for pod in pods} == {group["metadata"]["name"]}
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"phalanx"}  # only the webhook can say so
    asked = deployed.audited()
    assert [event for event in asked if event["responseStatus"]["code"] in (401, 403)] == []
    done = {(event["user"]["username"].removeprefix(ACCOUNT), event["verb"], _resource(event)) for event in asked}
    assert ("phalanx-scheduler", "create", "pods/binding") in done
    assert ("phalanx-controllers", "create", "podgroups") in done
    assert ("phalanx-controllers", "patch", "mutatingwebhookconfigurations") in done
    assert not any(event["verb"] == "patch" and _resource(event) == "pods" for event in asked)  # linked on their way in


def _resource(event: Json) -> str:
    about = event.get("objectRef") or {}
    return "/".join(part for part in (about.get("resource"), about.get("subresource")) if part)


def test_the_parts_may_do_nothing_else(deployed: Deployed) -> None:
    token = deployed.kubectl("create", "token", "phalanx-scheduler", "--namespace", "phalanx-system").strip()
    for method, path in (
        ("GET", "/api/v1/namespaces/kube-system/secrets"),
        ("DELETE", "/api/v1/nodes/node-0"),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/phalanx-system/leases/phalanx-controllers"),
        ("DELETE", "/apis/scheduling.phalanx.dev/v1beta1/namespaces/default/podgroups"),
    ):
        assert deployed.cluster.ask(method, path, token=token).code == 403, path
