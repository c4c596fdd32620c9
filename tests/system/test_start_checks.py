"""Clusters that cannot be worked with: one line that says what is wrong and what to do."""

from __future__ import annotations

import asyncio
import base64
import copy
import datetime
import json
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

from phalanx.base.clock import SystemClock, rfc3339_micro
from phalanx.base.errors import ConfigProblem
from phalanx.base.resources import LEASES
from phalanx.kube.client import HttpClient
from phalanx.kube.config import load
from phalanx.kube.lease import LeaseSettings
from phalanx.local.api.tls import load_identity
from phalanx.local.store.space import Space
from phalanx.model.crds import definitions
from phalanx.model.gates import KNOWN
from phalanx.serve import start_checks
from phalanx.serve.apiserver import ApiServer
from phalanx.serve.settings import Listen, ServerSettings
from phalanx.serve.start_checks import RequiredRight, rights_of
from support.local_cluster import LocalCluster
from support.rights import documents
from support.waiting import eventually_async

Json = dict[str, Any]
T = TypeVar("T")
PARTS = {
    "scheduler": ["scheduler", "--health", "127.0.0.1:0"],
    "controllers": ["controllers", "--mode", "cluster"],
}
LEASE = LeaseSettings("phalanx-scheduler", "kube-system")


VERSION = {"major": "1", "minor": "28+", "gitVersion": "v1.28.15"}


class OldServer(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        """Answer /version only: discovery may be forbidden."""
        code = 200 if self.path == "/version" else 404 if self.path.startswith("/elsewhere") else 403
        body = json.dumps(VERSION if code == 200 else {"kind": "Status", "code": code}).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def old_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The kubeconfig of an API server that says it is 1.28."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), OldServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    file = tmp_path_factory.mktemp("old") / "kubeconfig"
    cluster = {"name": "old", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
    context = {"name": "old", "context": {"cluster": "old"}}
    file.write_text(yaml.safe_dump({"clusters": [cluster], "contexts": [context], "current-context": "old"}))
    yield file
    server.shutdown()


@pytest.mark.parametrize("part", PARTS)
def test_an_api_server_that_is_too_old_is_refused(old_server: Path, part: str) -> None:
    command = [sys.executable, "-m", "phalanx", *PARTS[part], "--kubeconfig", str(old_server)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert "is Kubernetes 1.28, and Phalanx needs 1.29 or later: upgrade the cluster" in line


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"{}", b'{"major": "1", "minor": ""}', b'{"major": "1", "minor": "29"}']
)
def test_a_version_that_cannot_be_read_is_accepted(answer: bytes) -> None:
    start_checks.check_version("https://x", answer)


def first_line(kubeconfig: Path) -> str:
    command = [sys.executable, "-m", "phalanx", *PARTS["scheduler"], "--kubeconfig", str(kubeconfig)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        return process.stderr.readline()
    finally:
        process.kill()
        process.communicate()


def test_a_kubeconfig_that_names_another_program_is_reported(old_server: Path, tmp_path: Path) -> None:
    config = yaml.safe_load(old_server.read_text())
    config["clusters"][0]["cluster"]["server"] += "/elsewhere"  # where it answers 404
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    line = first_line(tmp_path / "kubeconfig")
    assert "is not a Kubernetes API server; correct the server in the kubeconfig" in line


def test_a_kubeconfig_with_the_authority_of_another_cluster_is_reported(server: LocalCluster, tmp_path: Path) -> None:
    config = yaml.safe_load(server.kubeconfig.read_text())
    authority = load_identity(None, ("localhost",), datetime.datetime.now(datetime.UTC)).ca
    config["clusters"][0]["cluster"]["certificate-authority-data"] = base64.b64encode(authority).decode()
    (tmp_path / "kubeconfig").write_text(yaml.safe_dump(config))
    line = first_line(tmp_path / "kubeconfig")
    assert "not from the authority in the kubeconfig" in line and "get the kubeconfig of this cluster again" in line


@pytest.fixture(scope="module")
def guarded(start_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    return start_cluster(authorization="RBAC", run_nodes=False, run_controllers=False, run_scheduler=False)


@pytest.fixture(scope="module")
def without_rights(guarded: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kubeconfig of an account that may do nothing."""
    return account(guarded, "nobody", tmp_path_factory.mktemp("nobody"))


def account(cluster: LocalCluster, name: str, directory: Path) -> Path:
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    cluster.create(accounts, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}})
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = cluster.create(f"{accounts}/{name}/token", asked)["status"]["token"]
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    file = directory / "kubeconfig"
    file.write_text(yaml.safe_dump(config))
    return file


@pytest.mark.parametrize(("part", "denied"), [("scheduler", "list nodes"), ("controllers", "list jobs")])
def test_missing_rights_are_listed_in_one_line_and_the_part_can_be_stopped(
    without_rights: Path, part: str, denied: str
) -> None:
    command = [sys.executable, "-m", "phalanx", *PARTS[part], "--kubeconfig", str(without_rights)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "this account may not" in line)
        assert denied in line and "get leases" in line and "apply deploy/base/20-rbac.yaml" in line
        process.terminate()
        process.communicate(timeout=20)  # it waits for nothing: it has begun nothing
        assert process.returncode == 0
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    ("part", "group", "resource", "line"),
    [
        ("scheduler", "policy", "poddisruptionbudgets", "list poddisruptionbudgets; watch poddisruptionbudgets"),
        ("scheduler", "events.k8s.io", "events", "create events; patch events"),
        ("controllers", "batch", "jobs/finalizers", "update jobs/finalizers"),
    ],
)
def test_any_rule_of_the_roles_that_is_missing_is_named(
    guarded: LocalCluster, tmp_path: Path, part: str, group: str, resource: str, line: str
) -> None:
    """A role without one rule: a cache that cannot be filled, or a write that fails much later."""
    name = f"{part}-without-{resource.replace('/', '-')}"
    (role,) = (
        b for b in documents("20-rbac.yaml") if (b["kind"], b["metadata"]["name"]) == ("ClusterRole", f"phalanx-{part}")
    )
    rules = [rule for rule in role["rules"] if not (group in rule["apiGroups"] and resource in rule["resources"])]
    assert len(rules) == len(role["rules"]) - 1
    typed = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": name}}
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    guarded.create(f"{rbac}/clusterroles", {**typed, "kind": "ClusterRole", "rules": rules})
    to = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": "default"}]
    bound = {**typed, "kind": "ClusterRoleBinding", "roleRef": to, "subjects": subjects}
    guarded.create(f"{rbac}/clusterrolebindings", bound)
    asked = rights_of(part, "phalanx-system")
    kubeconfig = account(guarded, name, tmp_path)

    async def missing() -> list[RequiredRight]:
        async with HttpClient(load(kubeconfig), user_agent="test") as client:
            cluster_wide = [right for right in asked if not right.namespace]
            return await start_checks.missing_rights(client, cluster_wide)

    assert start_checks.listed(asyncio.run(missing()), start_checks.MOST_RIGHTS) == line


def with_client(cluster: LocalCluster, work: Callable[[HttpClient], Awaitable[T]]) -> T:
    async def run() -> T:
        async with HttpClient(load(cluster.kubeconfig), user_agent="test") as client:
            return await work(client)

    return asyncio.run(run())


def outdated(cluster: LocalCluster, *, native: bool = False) -> list[str]:
    return with_client(
        cluster, lambda client: start_checks.outdated_resources(lambda p: client.request("GET", p), native=native)
    )


def test_custom_resources_of_an_older_version_are_reported(start_cluster: Callable[..., LocalCluster]) -> None:
    cluster = start_cluster(
        gates=",".join(f"{gate}=false" for gate in KNOWN), run_nodes=False, run_controllers=False, run_scheduler=False
    )
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    assert outdated(cluster) == []  # nothing is installed: workloads that need groups say so
    wanted = definitions()
    for definition in wanted[:3]:
        older = copy.deepcopy(definition)
        schema = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
        if older["spec"]["names"]["kind"] == "PodGroup":
            del schema["status"]["properties"]["pods"]
            del schema["spec"]["properties"]["schedulingConstraints"]["properties"]["topology"]
        cluster.create(path, older)
    expected = [
        "PodGroup lacks spec.schedulingConstraints.topology",
        "PodGroup lacks status.pods",
        "WorkloadPolicy is missing",
    ]
    assert outdated(cluster) == expected
    cluster.create(path, wanted[3])
    assert outdated(cluster) == expected[:2]
    assert outdated(cluster, native=True) == []  # groups are Kubernetes' own there


def test_the_line_about_older_custom_resources_says_what_to_apply(
    server: LocalCluster, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def older(ask: Any, *, native: bool) -> list[str]:
        return ["PodGroup lacks status.pods"]

    monkeypatch.setattr(start_checks, "outdated_resources", older)
    with_client(
        server,
        lambda client: start_checks.report_outdated_resources(
            start_checks.GroupApi(client), lambda path: client.request("GET", path)
        ),
    )
    assert "PodGroup lacks status.pods" in caplog.text and "kubectl apply -k deploy/" in caplog.text


def lease(holder: str, renewed: float) -> Json:
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": rfc3339_micro(renewed)}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": LEASE.name}, "spec": spec}


def test_a_second_instance_with_its_lease_in_another_namespace_is_reported(
    server: LocalCluster, caplog: pytest.LogCaptureFixture
) -> None:
    clock = SystemClock()

    async def scenario(client: HttpClient) -> None:
        now = clock.now()
        for namespace, holder, renewed in (
            ("kube-system", "me_1", now),
            ("kube-public", "gone_2", now - 3600),
            ("default", "twin-7f_3", now),
        ):
            await client.create(LEASES, lease(holder, renewed), namespace)
        assert await start_checks.other_holders(client, LEASE, clock) == [("default", "twin-7f_3")]
        reporting = asyncio.create_task(
            start_checks.report_other_holders(client, LEASE, clock, "--lease-namespace"), name="report"
        )
        await eventually_async(lambda: caplog.records, "the other holder is reported")
        reporting.cancel()

    with_client(server, scenario)
    (record,) = caplog.records
    assert "also held in namespace default (by twin-7f)" in record.message
    assert "give both the same --lease-namespace, or stop one" in record.message


def test_a_new_cluster_on_a_full_disk_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Space, "_free", lambda self: 2 << 20)

    async def started() -> None:
        server = ApiServer(ServerSettings(tmp_path / "data", Listen("127.0.0.1", 0)))
        try:
            await server.start()
        finally:
            await server.stop()

    with pytest.raises(ConfigProblem, match="--data: 2 MiB are free on the disk .* choose another place"):
        asyncio.run(started())
