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
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import pytest
import yaml

from phalanx.model.gates import KNOWN
from support.cluster_mode import LABEL, gang_job
from support.local_cluster import LocalCluster
from support.processes import started
from support.rights import DEPLOY, installed
from support.waiting import eventually

PODS = "/api/v1/namespaces/default/pods"

Json = dict[str, Any]
ACCOUNT = "system:serviceaccount:phalanx-system:"
KUBECTL = shutil.which("kubectl")


class Deployed:
    def __init__(self, cluster: LocalCluster, directory: Path, api: str) -> None:
        self.cluster, self.directory = cluster, directory
        self.lines: list[str] = []  # what each part said when it was ready
        self.api = api  # where the cluster keeps groups

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

    def start(self, account: str) -> tuple[subprocess.Popen[str], str]:
        """The command of a Deployment, listening where a test may."""
        (body,) = (b for b in installed() if (b["kind"], b["metadata"]["name"]) == ("Deployment", account))
        container = body["spec"]["template"]["spec"]["containers"][0]
        arguments = [re.sub(r"(0\.0\.0\.0|127\.0\.0\.1):\d+", "127.0.0.1:0", text) for text in container["args"]]
        return started(*arguments, "--kubeconfig", str(self.kubeconfig(account)))

    def audited(self) -> list[Json]:
        """What our parts asked for."""
        events = [json.loads(line) for line in (self.directory / "audit.log").read_text().splitlines()]
        ours = [event for event in events if event["user"].get("username", "").startswith(ACCOUNT)]
        return [event for event in ours if event["userAgent"].startswith("phalanx-")]


# An old cluster has groups as custom resources; a new one serves them, while its Job controller makes none itself.
CLUSTERS = {
    "custom": (",".join(f"{gate}=false" for gate in KNOWN), "/apis/scheduling.phalanx.dev/v1beta1"),
    "native": ("WorkloadWithJob=false", "/apis/scheduling.k8s.io/v1beta1"),
}


@pytest.fixture(scope="module", params=CLUSTERS)
def deployed(
    request: pytest.FixtureRequest,
    start_cluster: Callable[..., LocalCluster],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Deployed]:
    if KUBECTL is None:
        pytest.skip("no kubectl on PATH")
    directory = tmp_path_factory.mktemp("deployed")
    gates, api = CLUSTERS[request.param]
    # Our scheduler beside that of the cluster: only what asks for it by name is its business.
    cluster = start_cluster(gates=gates, nodes=4, authorization="RBAC", audit_log=directory / "audit.log")
    made = Deployed(cluster, directory, api)
    made.kubectl("apply", "-k", str(DEPLOY))
    running = [made.start("phalanx-scheduler")]
    try:
        running.append(made.start("phalanx-controllers"))
        found = re.search(r"webhook=https://127\.0\.0\.1:(\d+)", running[1][1])
        assert found, running[1][1]
        where = f"simulation.phalanx.dev/endpoint=127.0.0.1:{found[1]}"
        made.kubectl("annotate", "service", "phalanx-webhook", "--namespace", "phalanx-system", where)
        made.lines = [line for _, line in running]
        found = re.search(r"secure=https://127\.0\.0\.1:(\d+)", running[0][1])
        assert found, running[0][1]
        where = f"simulation.phalanx.dev/endpoint=127.0.0.1:{found[1]}"
        made.kubectl("annotate", "service", "phalanx-scheduler", "--namespace", "phalanx-system", where)
        yield made
    finally:
        for process, _ in running:
            process.send_signal(signal.SIGTERM)
        for process, _ in running:
            process.communicate(timeout=30)


def test_a_gang_runs_on_a_cluster_where_deploy_was_applied(deployed: Deployed) -> None:
    cluster = deployed.cluster
    cluster.create("/apis/batch/v1/namespaces/default/jobs", gang_job("train", 3))

    def running() -> list[Json]:
        pods = cluster.get(PODS)["items"]
        return pods if sum(pod["status"].get("phase") == "Running" for pod in pods) == 3 else []

    pods = eventually(running, "three running pods")
    (group,) = cluster.get(f"{deployed.api}/namespaces/default/podgroups")["items"]
    assert {_group(pod) for pod in pods} == {group["metadata"]["name"]}
    assert {pod["spec"]["schedulerName"] for pod in pods} == {"phalanx"}  # only the webhook can say so
    asked = deployed.audited()
    assert [event for event in asked if event["responseStatus"]["code"] in (401, 403)] == []
    done = {(event["user"]["username"].removeprefix(ACCOUNT), event["verb"], _resource(event)) for event in asked}
    assert ("phalanx-scheduler", "create", "pods/binding") in done
    assert ("phalanx-controllers", "create", "podgroups") in done
    assert ("phalanx-controllers", "patch", "mutatingwebhookconfigurations") in done
    assert not any(event["verb"] == "patch" and _resource(event) == "pods" for event in asked)  # linked on their way in


def _group(pod: Json) -> str:
    """By the field where the server keeps it, by label elsewhere."""
    field = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
    return str(field or pod["metadata"]["labels"][LABEL])


def _resource(event: Json) -> str:
    about = event.get("objectRef") or {}
    return "/".join(part for part in (about.get("resource"), about.get("subresource")) if part)


def test_the_parts_may_do_nothing_else(deployed: Deployed) -> None:
    token = deployed.kubectl("create", "token", "phalanx-scheduler", "--namespace", "phalanx-system").strip()
    for method, path in (
        ("GET", "/api/v1/namespaces/kube-system/secrets"),
        ("DELETE", "/api/v1/nodes/node-0"),
        ("GET", "/apis/coordination.k8s.io/v1/namespaces/phalanx-system/leases/phalanx-controllers"),
        ("DELETE", f"{deployed.api}/namespaces/default/podgroups"),
    ):
        assert deployed.cluster.ask(method, path, token=token).code == 403, path


def test_tenants_ask_through_the_service_proxy(deployed: Deployed) -> None:
    """With a token for the scheduler alone, of an account that they may create tokens for."""
    cluster = deployed.cluster
    deployed.kubectl("create", "namespace", "team-a")
    deployed.kubectl("apply", "-k", str(DEPLOY / "tenant"))
    deployed.kubectl("create", "serviceaccount", "alice", "-n", "team-a")
    token = deployed.kubectl("create", "token", "alice", "-n", "team-a").strip()
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    config["contexts"][0]["context"]["namespace"] = "team-a"
    file = deployed.directory / "alice.kubeconfig"
    file.write_text(yaml.safe_dump(config))

    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        service = ["--scheduler", "phalanx-system/phalanx-scheduler"]  # the API server here has one of its own inside
        command = [sys.executable, "-m", "phalanx.cli.kubectl", *arguments, *service, "--kubeconfig", str(file)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    cluster.create("/api/v1/namespaces/team-a/pods", waiting_pod("mine"))
    refused = ask("why", "pod/mine")
    assert refused.returncode == 2 and 'cannot create resource "serviceaccounts/token"' in refused.stderr
    assert "deploy/tenant" in refused.stderr
    role = ("--role", "phalanx-asker-token", "--serviceaccount", "team-a:alice")
    deployed.kubectl("create", "rolebinding", "alice-asks", "-n", "team-a", *role)

    def answered() -> str:
        return ask("why", "pod/mine").stdout

    assert "pod/mine in team-a: pending" in eventually(answered, "an answer")
    other = ask("why", "pod/other", "-n", "default")
    assert other.returncode == 2 and 'serviceaccounts "phalanx-asker" is forbidden' in other.stderr
    assert 'in the namespace "default"' in other.stderr
    # The same token that asks the scheduler is of no use to the API server, and reaches nothing else there.
    spec = {"audiences": ["phalanx-scheduler"], "expirationSeconds": 600}
    path = "/api/v1/namespaces/team-a/serviceaccounts/phalanx-asker/token"
    asker = cluster.create(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
    assert cluster.ask("GET", "/api/v1/namespaces/team-a/pods", token=asker["status"]["token"]).code == 401
    # A token of the API server's own audience goes over the same way only when that is asked for.
    assert "cannot get resource" in ask("why", "pod/mine", "--own-token").stderr
    deployed.kubectl("delete", "namespace", "team-a")


def waiting_pod(name: str) -> Json:
    container = {"name": "c", "image": "app", "resources": {"requests": {"cpu": "10000"}}}
    spec = {"schedulerName": "phalanx", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.mark.parametrize("part", ["scheduler", "controllers"])
def test_metrics_are_for_users_the_api_server_allows_and_probes_for_all(deployed: Deployed, part: str) -> None:
    line = next(line for line in deployed.lines if line.startswith(f"ready {part}"))
    found = re.search(r"secure=(https://127\.0\.0\.1:\d+)", line)
    assert found, line
    deployed.kubectl("create", "serviceaccount", f"scraper-{part}")
    token = deployed.kubectl("create", "token", f"scraper-{part}").strip()
    trusting = ssl._create_unverified_context()  # as kube-scheduler's own certificate, it is made at start

    def ask(path: str, token: str = "") -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        try:
            with urlopen(Request(found[1] + path, headers=headers), timeout=20, context=trusting) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as refusal:
            return refusal.code, refusal.read().decode()

    assert ask("/livez") == (200, "ok")
    assert ask("/metrics")[0] == 401 and ask("/metrics", "made-up")[0] == 401
    code, said = ask("/metrics", token)
    assert code == 403 and "no permission to get the non-resource URL /metrics" in said
    other = deployed.kubectl("create", "token", "default").strip()
    deployed.kubectl(
        "create", "clusterrolebinding", f"scrapes-{part}", "--clusterrole=phalanx-metrics-reader",
        "--serviceaccount=default:default",
    )  # fmt: skip
    code, said = ask("/metrics", other)
    failed = 'phalanx_webhook_answers_total{outcome="failed"} 0.0'  # from the start: an alert has to see the first one
    assert code == 200 and ("scheduler_pending_pods" if part == "scheduler" else failed) in said
    assert f'leader_election_master_status{{name="phalanx-{part}"}} 1.0' in said
    assert re.search(r'(?m)^rest_client_requests_total\{code="200",host="127\.0\.0\.1:\d+",method="GET"\} [1-9]', said)
    assert "\nrest_client_request_duration_seconds_bucket{" in said and "\nprocess_cpu_seconds_total " in said
    named = (
        "kubernetes_feature_enabled{"
        if part == "scheduler"
        else 'phalanx_controller_failures_total{controller="labels"} 0'
    )
    assert f"\n{named}" in said
    assert ask("/dashboard/")[0] == 404, "the dashboard is for loopback"
    if part == "scheduler":
        assert ask("/phalanx/v1/state")[0] == 401 and ask("/phalanx/v1/state", other)[0] == 403


def test_the_dashboard_of_the_deployed_scheduler_shows_what_happened(deployed: Deployed) -> None:
    """Through its loopback port, as kubectl port-forward reaches it: events and what-if with the rights of its role."""
    cluster = deployed.cluster
    found = re.search(r"health=(http://127\.0\.0\.1:\d+)", deployed.lines[0])
    assert found, deployed.lines
    deployed.kubectl("create", "serviceaccount", "viewer")
    deployed.kubectl(
        "create", "clusterrolebinding", "views", "--clusterrole=phalanx-asker", "--serviceaccount=default:viewer"
    )
    token = deployed.kubectl("create", "token", "viewer").strip()
    jar = build_opener(HTTPCookieProcessor())
    origin = {"Origin": found[1]}

    def ask(path: str, body: Json | None = None) -> Json:
        data = json.dumps(body).encode() if body is not None else None
        with jar.open(Request(f"{found[1]}/dashboard/{path}", data, origin), timeout=20) as answer:
            announced: Json = json.loads(answer.read())
            return announced

    assert ask("api/session", {"token": token}) == {}
    cluster.create("/apis/batch/v1/namespaces/default/jobs", gang_job("seen", 2))

    def bound() -> list[Json]:
        pods = [pod for pod in cluster.get(PODS)["items"] if pod["metadata"]["name"].startswith("seen-")]
        return pods if sum(bool(pod["spec"].get("nodeName")) for pod in pods) == 2 else []

    name = eventually(bound, "two bound pods")[0]["metadata"]["name"]
    announced = eventually(lambda: ask(f"api/events?key=pod/default/{name}").get("events"), "events of the pod")
    assert "Scheduled" in {event["reason"] for event in announced}
    asked = ask("api/whatif", {"text": json.dumps(gang_job("asked", 2)), "namespace": "default"})
    assert asked["outlook"]
