"""`phalanx check-cluster`: what it says of clusters with and without Phalanx, and of what is wrong with them."""

from __future__ import annotations

import asyncio
import base64
import datetime
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from phalanx.base.errors import ApiProblem, NotFound, ServiceUnavailable
from phalanx.local.api.tls import load_identity
from phalanx.local.api.users import FILE, add_user
from phalanx.model.gates import KNOWN
from phalanx.serve.cluster_check import ABSENT, FAILS, UNKNOWN, WORKS, ClusterCheck
from phalanx.serve.start_checks import PARTS, rights_of
from support.local_cluster import LocalCluster
from support.manual_clock import ManualClock
from support.rights import grants, installed

Json = dict[str, Any]


def check(*arguments: str, code: int | None = None) -> str:
    command = [sys.executable, "-m", "phalanx", "check-cluster", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def checks(kubeconfig: Path, code: int) -> dict[str, Json]:
    found = json.loads(check("--kubeconfig", str(kubeconfig), "-o", "json", code=code))
    assert found["works"] == (code == 0)
    return {each["name"]: each for each in found["checks"]}


@pytest.fixture(scope="module")
def old(start_cluster: Callable[..., LocalCluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster without native groups, in which nothing is installed at first."""
    gates = ",".join(f"{gate}=false" for gate in KNOWN)
    data = tmp_path_factory.mktemp("checked")
    options: Json = {"run_nodes": False, "run_controllers": False, "run_scheduler": False}
    yield start_cluster(gates=gates, authorization="RBAC", data=data, **options)


def test_a_cluster_is_looked_at_before_and_after_the_install(old: LocalCluster) -> None:
    before = checks(old.kubeconfig, code=1)
    assert before["version"]["state"] == before["clock"]["state"] == WORKS
    assert before["groups"]["state"] == FAILS and "overlays/custom-resources" in before["groups"]["todo"]
    assert before["rights"]["found"] == "you may install; Phalanx is not installed yet"
    assert before["webhook"]["state"] == before["leases"]["state"] == before["questions"]["state"] == ABSENT
    assert before["gates"]["found"].startswith("off: GenericWorkload")

    for body in installed():
        old.apply(body)
    after = checks(old.kubeconfig, code=1)
    assert after["groups"]["found"] == "PodGroups: custom resources (scheduling.phalanx.dev)"
    assert after["rights"]["state"] == WORKS and "all rights" in after["rights"]["found"]
    assert "no caBundle" in after["webhook"]["found"] and after["webhook"]["state"] == FAILS
    assert after["questions"]["state"] == FAILS and "no endpoints available" in after["questions"]["found"]

    hooks = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/phalanx"
    hook = old.get(hooks)["webhooks"]
    for number, each in enumerate(hook):
        each["clientConfig"]["caBundle"] = authority(days=-10 if number == 0 else 4000)
    old.patch(hooks, {"webhooks": hook})
    expired = checks(old.kubeconfig, code=1)["webhook"]
    assert "expired on" in expired["found"] and "delete secret phalanx-webhook-tls" in expired["todo"]
    for each in hook:
        each["clientConfig"] = {"caBundle": authority(days=20), "url": "https://localhost:1/"}
    old.patch(hooks, {"webhooks": hook})
    soon = checks(old.kubeconfig, code=1)["webhook"]
    assert soon["state"] == WORKS and "expires on" in soon["found"] and "renew its files" in soon["todo"]

    role = old.get("/apis/rbac.authorization.k8s.io/v1/clusterroles/phalanx-scheduler")
    role["rules"] = [rule for rule in role["rules"] if "pods/binding" not in rule["resources"]]
    old.patch("/apis/rbac.authorization.k8s.io/v1/clusterroles/phalanx-scheduler", {"rules": role["rules"]})
    less = checks(old.kubeconfig, code=1)["rights"]
    assert less["state"] == FAILS and "may not create pods/binding" in less["found"]


def authority(days: int) -> str:
    now = datetime.datetime.now(datetime.UTC)
    made = load_identity(None, ("x",), now + datetime.timedelta(days=days - 3650))
    return base64.b64encode(made.ca).decode()


def test_two_instances_with_one_lease_name_are_found(old: LocalCluster) -> None:
    now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    for namespace in ("phalanx-system", "elsewhere"):
        old.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        spec = {"holderIdentity": f"pod-in-{namespace}_1", "leaseDurationSeconds": 600, "renewTime": now}
        lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "phalanx-scheduler"}}
        old.apply({**lease, "spec": spec}, namespace=namespace)
    found = checks(old.kubeconfig, code=1)["leases"]
    assert found["state"] == FAILS and "also held in namespace elsewhere" in found["found"]
    old.delete("/apis/coordination.k8s.io/v1/namespaces/elsewhere/leases/phalanx-scheduler")
    assert "scheduler: pod-in-phalanx-system" in checks(old.kubeconfig, code=1)["leases"]["found"]


def test_a_user_without_rights_learns_which_checks_need_more(old: LocalCluster, tmp_path: Path) -> None:
    data = old.cluster.settings.server.data
    assert data is not None
    config = yaml.safe_load(old.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": add_user(data / FILE, "visitor", ())}
    file = tmp_path / "visitor"
    file.write_text(yaml.safe_dump(config))
    found = json.loads(check("--kubeconfig", str(file), "-o", "json"))["checks"]  # the code depends on what others left
    states = {each["name"]: each["state"] for each in found}
    assert states["version"] == WORKS and states["gates"] == states["schedulers"] == UNKNOWN
    assert all("administrator" in each["todo"] for each in found if each["state"] == UNKNOWN)


def test_a_local_cluster_works(cluster: LocalCluster) -> None:
    text = check("--kubeconfig", str(cluster.kubeconfig), code=0)
    assert "PodGroups: Kubernetes serves them (scheduling.k8s.io)" in text
    assert "GenericWorkload" in text and "works" in text


class Old(BaseHTTPRequestHandler):
    """An API server of long ago, an hour late, that knows nothing else."""

    skew: ClassVar[float] = 3600.0

    def do_GET(self) -> None:
        code, body = (200, {"major": "1", "minor": "28+", "gitVersion": "v1.28.3"}) if self.path == "/version" else (
            404, {"kind": "Status", "code": 404, "reason": "NotFound", "message": "no"})  # fmt: skip
        data = json.dumps(body).encode()
        self.send_response_only(code)
        self.send_header("Date", formatdate(time.time() - self.skew, usegmt=True))
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        return


def test_bad_clusters_get_one_clear_line(tmp_path: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Old)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    file = tmp_path / "kubeconfig"
    file.write_text(kubeconfig(f"http://127.0.0.1:{server.server_port}"))
    try:
        found = checks(file, code=1)
    finally:
        server.shutdown()
        server.server_close()
    assert found["version"]["state"] == FAILS and "needs 1.29 or later" in found["version"]["todo"]
    assert found["clock"]["state"] == FAILS and "3600 s" in found["clock"]["found"]
    gone = check("--kubeconfig", str(file), code=2)
    assert gone.startswith("error: ") and "Traceback" not in gone
    file.write_text("nonsense")
    assert check("--kubeconfig", str(file), code=2).startswith("error: ")
    assert "No such file" in check("--kubeconfig", str(tmp_path / "none"), code=2)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (NotFound('services "phalanx-scheduler" not found'), FAILS),  # of Kubernetes 1.29: it has no Endpoints
        (ServiceUnavailable('no endpoints available for service "phalanx-scheduler"'), FAILS),
        (NotFound("no such path"), WORKS),  # of the part
    ],
)
def test_a_service_without_pods_is_not_reached(answer: ApiProblem, state: str) -> None:
    class Client:
        async def request(self, method: str, path: str, **_: object) -> bytes:
            if "/proxy/" in path:
                raise answer
            return b"{}"

    check: Any = ClusterCheck(Client(), ManualClock())  # type: ignore[arg-type]
    assert asyncio.run(check._questions()).state == state


def kubeconfig(url: str) -> str:
    entry = {"clusters": [{"name": "c", "cluster": {"server": url}}], "users": [{"name": "u", "user": {"token": "t"}}]}
    context = {"contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}], "current-context": "x"}
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **entry, **context})


def test_the_rights_that_are_looked_at_are_those_of_the_roles() -> None:
    for part in PARTS:
        roles = [f"phalanx-{part}", *(["phalanx-placement"] if part == "scheduler" else [])]
        wanted = {(g.use.verb, g.use.group, g.use.resource, g.namespace, name)
                  for role in roles for g in grants(role) for name in g.names or ("",)}  # fmt: skip
        found = {(r.verb, r.group, r.resource, r.namespace, r.name) for r in rights_of(part, "phalanx-system")}
        assert found == wanted and found
