"""A real control plane, etcd and kube-apiserver, with nodes that are only objects, and our parts as processes."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from phalanx.model.quantity import milli
from support.programs import needs_kubernetes, program
from support.rights import DEPLOY, documents
from support.waiting import eventually

Json = dict[str, Any]
GATES = "GenericWorkload=true,CompositePodGroup=true,TopologyAwareWorkloadScheduling=true"
APIS = "scheduling.k8s.io/v1alpha3=true,scheduling.k8s.io/v1beta1=true,resource.k8s.io/v1=true"
NATIVE, CUSTOM = "scheduling.k8s.io", "scheduling.phalanx.dev"
LABEL = "scheduling.phalanx.dev/pod-group"
TOKEN = "token-of-an-administrator"
GANG = {"scheduling.phalanx.dev/gang": "true"}  # annotation of a workload
_TRUST = ssl._create_unverified_context()  # the server makes its certificate at its start


class Refused(Exception):
    """An answer of 400 or more."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text[:500]}")
        self.code = code


def pod_template() -> Json:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    return {"spec": {"containers": [container], "restartPolicy": "Never"}}


def serving_certificate(directory: Path) -> str:
    """Write `tls.key` and `tls.crt` for 127.0.0.1 as the webhooks of other projects want them; return the bundle."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    day = datetime.datetime(2026, 1, 1)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))])
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, day, day + datetime.timedelta(days=3650))
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    certificate = made.add_extension(address, critical=False).sign(key, hashes.SHA256())
    (directory / "tls.key").write_bytes(encoded)
    (directory / "tls.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return base64.b64encode(certificate.public_bytes(serialization.Encoding.PEM)).decode()


class Process:
    """A program whose output goes to a file."""

    def __init__(self, log: Path, *command: str, env: dict[str, str] | None = None) -> None:
        self.log, self._command, self._env = log, command, env
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                self._command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=self._env
            )

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        if self.alive:
            self.signal(signal.SIGCONT)
            self._process.kill()
        self._process.wait(30)

    def end(self) -> int:
        """End it as a Deployment would; the exit code."""
        self.signal(signal.SIGTERM)
        return self._process.wait(60)

    def wait_for_log(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        def found() -> re.Match[str] | None:
            assert self.alive or re.search(pattern, self.text), self.text[-3000:]
            return re.search(pattern, self.text)

        match: re.Match[str] = eventually(found, f"{self._command[0]} says {pattern}", seconds)
        return match


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class RealCluster:
    def __init__(self, directory: Path, *, groups: bool = True, gates: str = GATES) -> None:
        """groups: the API server serves Workload, PodGroup and CompositePodGroup itself, with these gates."""
        if groups:
            needs_kubernetes(37, "groups that the API server serves itself need")
        self.directory, self.groups, self._gates = directory, groups, gates
        self.parts: list[Process] = []
        client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self.etcd = Process(
            directory / "etcd.log",
            program("etcd"),
            f"--data-dir={directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )
        self.url = f"https://127.0.0.1:{free_port()}"
        self.kubeconfig = self._write_kubeconfig("kubeconfig", TOKEN)
        self.server = Process(directory / "kube-apiserver.log", program("kube-apiserver"), *self._flags(client))
        self.wait_ready()

    def _flags(self, etcd: str) -> list[str]:
        directory = self.directory
        (directory / "tokens").write_text(f'{TOKEN},admin,1,"system:masters"\n')
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
        (directory / "accounts.key").write_bytes(key)
        audit = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}
        (directory / "audit.yaml").write_text(yaml.safe_dump({**audit, "omitStages": ["RequestReceived"]}))
        flags = [
            f"--etcd-servers={etcd}",
            "--bind-address=127.0.0.1",
            f"--secure-port={self.url.rpartition(':')[2]}",
            f"--cert-dir={directory / 'certificates'}",
            f"--token-auth-file={directory / 'tokens'}",
            "--authorization-mode=RBAC",
            f"--service-account-key-file={directory / 'accounts.key'}",
            f"--service-account-signing-key-file={directory / 'accounts.key'}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.0.0.0/24",
            # Nothing makes default service accounts, and no kubelet removes the taints of new nodes.
            "--disable-admission-plugins=ServiceAccount,TaintNodesByCondition",
            "--profiling=false",
            f"--audit-policy-file={directory / 'audit.yaml'}",
            f"--audit-log-path={directory / 'audit.log'}",
        ]
        return [*flags, f"--runtime-config={APIS}", f"--feature-gates={self._gates}"] if self.groups else flags

    def _write_kubeconfig(self, name: str, token: str) -> Path:
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "real",
            "clusters": [{"name": "real", "cluster": cluster}],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "real", "context": {"cluster": "real", "user": "user"}}],
        }
        file = self.directory / name
        file.write_text(yaml.safe_dump(config))
        return file

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.server.alive, self.server.text[-3000:]
            try:
                self.ask("GET", "/readyz", decode=False)
                self.ask("GET", "/api/v1/namespaces/default")
                return True
            except (OSError, Refused):
                return False

        eventually(ready, "kube-apiserver is ready", 120)

    def restart_server(self) -> None:
        self.server.start()
        self.wait_ready()

    def close(self) -> None:
        for process in (*reversed(self.parts), self.server, self.etcd):
            process.kill()

    # ---- requests

    def ask(self, method: str, path: str, body: Json | None = None, *, decode: bool = True, kind: str = "") -> Any:
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind or "application/json"}
        data = json.dumps(body).encode() if body is not None else None
        end = time.monotonic() + 60
        while True:
            try:
                request = Request(self.url + path, data, headers, method=method)
                with urlopen(request, timeout=30, context=_TRUST) as answer:
                    text = answer.read()
                return json.loads(text) if decode else text
            except HTTPError as problem:
                found = problem.read().decode(errors="replace")
                # A custom resource whose definition has just changed.
                if problem.code != 429 or "(re)initializing" not in found or time.monotonic() > end:
                    raise Refused(problem.code, found) from None
                time.sleep(0.5)

    def items(self, path: str) -> list[Json]:
        found: list[Json] = self.ask("GET", path)["items"]
        return found

    def create(self, path: str, body: Json) -> Json:
        made: Json = self.ask("POST", path, body)
        return made

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        env = {**os.environ, "KUBECONFIG": str(self.kubeconfig), "HOME": str(self.directory)}
        command = [program("kubectl"), *arguments]
        done = subprocess.run(command, env=env, text=True, input=text, capture_output=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    # ---- our parts, as deploy/ has them

    def install(self) -> None:
        self.kubectl("apply", "-k", str(DEPLOY))

    def account(self, name: str) -> Path:
        """The kubeconfig of a service account: what its pod has, and nothing else."""
        asked: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        path = f"/api/v1/namespaces/phalanx-system/serviceaccounts/{name}/token"
        return self._write_kubeconfig(f"{name}.kubeconfig", self.create(path, asked)["status"]["token"])

    def start(self, part: str, *extra: str) -> Process:
        """Start `scheduler` or `controllers` with the arguments of its manifest."""
        file = {"scheduler": "30-scheduler.yaml", "controllers": "40-controllers.yaml"}[part]
        (deployment,) = (body for body in documents(file) if body["kind"] == "Deployment")
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        arguments = [re.sub(r"(0\.0\.0\.0|127\.0\.0\.1):\d+", "127.0.0.1:0", text) for text in container["args"]]
        kubeconfig = self.account(f"phalanx-{part}")
        process = self.run(part, *arguments, "--kubeconfig", str(kubeconfig), *extra)
        process.wait_for_log(r"(?m)^ready ")
        return process

    def run(self, name: str, *arguments: str) -> Process:
        """A phalanx command of its own, ended with the cluster."""
        log = self.directory / f"{name}-{len(self.parts)}.log"
        process = Process(log, sys.executable, "-m", "phalanx", *arguments)
        self.parts.append(process)
        return process

    def start_controller_manager(self) -> Process:
        """Start kube-controller-manager, which makes pods of workloads."""
        gates = [f"--feature-gates={GATES}"] if self.groups else []
        process = Process(
            self.directory / "kube-controller-manager.log",
            program("kube-controller-manager"),
            f"--kubeconfig={self.kubeconfig}",
            f"--service-account-private-key-file={self.directory / 'accounts.key'}",
            "--leader-elect=false",
            "--secure-port=0",
            "--controllers=*,-nodelifecycle",  # nodes here have no kubelet that renews a lease
            *gates,
        )
        self.parts.append(process)
        return process

    def webhook_at(self, controllers: Process) -> None:
        """Let the API server call the webhook of a process instead of a Service, which has no pods here."""
        port = controllers.wait_for_log(r"webhook=https://127\.0\.0\.1:(\d+)")[1]
        path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/phalanx"
        configuration = self.ask("GET", path)
        for hook in configuration["webhooks"]:
            service = hook["clientConfig"].pop("service")
            hook["clientConfig"]["url"] = f"https://localhost:{port}{service['path']}"
        self.ask("PUT", path, configuration)

    def define(self, definitions: Path) -> None:
        """Apply the definitions of another project, webhooks excluded, and wait until all their kinds are served."""
        for file in sorted(definitions.glob("*.yaml")):
            if file.name == "webhooks.yaml":
                continue
            self.kubectl("apply", "--server-side", "-f", str(file))
            for body in yaml.safe_load_all(file.read_text()):
                spec = body["spec"]
                for version in (each["name"] for each in spec["versions"] if each["served"]):
                    path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
                    eventually(lambda path=path: self._served(path), f"{path} is served", 60)

    def _served(self, path: str) -> bool:
        try:
            self.ask("GET", f"{path}?limit=1")
            return True
        except Refused as problem:
            if problem.code not in (404, 503):
                raise
            return False

    def webhooks_of(self, manifests: Path, port: int, bundle: str) -> None:
        """Apply the webhook configurations of another project; its webhook listens on a port here."""
        for body in yaml.safe_load_all(manifests.read_text()):
            body["metadata"]["name"] = f"{manifests.parent.name}-{body['kind'].lower()}"
            for hook in body["webhooks"]:
                path = hook["clientConfig"]["service"]["path"]
                hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
            self.kubectl("apply", "-f", "-", text=json.dumps(body))

    def forbidden(self) -> list[str]:
        """What our accounts asked for and were not allowed, by the audit log."""
        found = Counter[str]()
        for line in (self.directory / "audit.log").read_text().splitlines():
            event = json.loads(line)
            user = event["user"].get("username", "")
            code = (event.get("responseStatus") or {}).get("code")
            if user.startswith("system:serviceaccount:phalanx-system:") and code in (401, 403):
                found[f"{user.rpartition(':')[2]} {event['verb']} {event['requestURI'].partition('?')[0]}"] += 1
        return sorted(found)

    # ---- nodes, gangs, and what must always hold

    def nodes(self, count: int, cpu: int, **labels: str) -> None:
        for number in range(count):
            name = f"node-{number}"
            capacity = {"cpu": str(cpu), "memory": "64Gi", "pods": "110"}
            self.create("/api/v1/nodes", {"metadata": {"name": name, "labels": labels}})
            ready = {"type": "Ready", "status": "True", "reason": "Made", "message": "", "lastHeartbeatTime": None}
            status = {"capacity": capacity, "allocatable": capacity, "conditions": [ready]}
            kind = "application/strategic-merge-patch+json"
            self.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, kind=kind)

    @property
    def group_api(self) -> str:
        return f"/apis/{NATIVE if self.groups else CUSTOM}/v1beta1"

    def namespace(self, name: str) -> str:
        self.create("/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def gang(self, namespace: str, name: str, size: int, cpu: str = "1") -> None:
        """A PodGroup and its pods, made by hand. What exists already, after an attempt that failed halfway, stays."""
        group = {"metadata": {"name": name}, "spec": {"schedulingPolicy": {"gang": {"minCount": size}}}}
        self._ensure(f"{self.group_api}/namespaces/{namespace}/podgroups", self._typed("PodGroup", group))
        for number in range(size):
            container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": cpu}}}
            pod: Json = {
                "metadata": {"name": f"{name}-{number}", "labels": {}},
                "spec": {"schedulerName": "phalanx", "containers": [container]},
            }
            if self.groups:
                pod["spec"]["schedulingGroup"] = {"podGroupName": name}
            else:
                pod["metadata"]["labels"][LABEL] = name
            self._ensure(f"/api/v1/namespaces/{namespace}/pods", pod)

    def _ensure(self, path: str, body: Json) -> None:
        try:
            self.create(path, body)
        except Refused as problem:
            if problem.code != 409:
                raise

    def _typed(self, kind: str, body: Json) -> Json:
        return {"apiVersion": self.group_api.removeprefix("/apis/"), "kind": kind, **body}

    def pods(self, namespace: str = "") -> list[Json]:
        return self.items(f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods")

    def bound(self, namespace: str) -> list[str]:
        return sorted(pod["metadata"]["name"] for pod in self.pods(namespace) if pod["spec"].get("nodeName"))

    def whole(self, namespace: str, *gangs: str) -> bool:
        """Whether all pods of these gangs are bound."""
        waiting = {_group(pod) for pod in self.pods(namespace) if not pod["spec"].get("nodeName")}
        return not waiting & set(gangs)

    def wait_whole(self, namespace: str, *gangs: str, seconds: float = 120) -> None:
        eventually(lambda: self.whole(namespace, *gangs), f"{', '.join(gangs)} are bound", seconds)

    def broken(self) -> list[str]:
        """Nodes with more than they have, and gangs of which some members are bound and fewer than the minimum."""
        pods = [pod for pod in self.pods() if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
        groups = self.items(f"{self.group_api}/podgroups")
        return [*over_committed(self.items("/api/v1/nodes"), pods), *partial(groups, pods)]


def _group(pod: Json) -> str:
    field = (pod["spec"].get("schedulingGroup") or {}).get("podGroupName")
    return str(field or (pod["metadata"].get("labels") or {}).get(LABEL) or "")


def over_committed(nodes: Iterable[Json], pods: Iterable[Json]) -> list[str]:
    asked: dict[str, float] = defaultdict(float)
    for pod in pods:
        for container in pod["spec"]["containers"]:
            cpu = ((container.get("resources") or {}).get("requests") or {}).get("cpu") or "0"
            asked[pod["spec"].get("nodeName") or ""] += milli(cpu) / 1000
    found = []
    for node in nodes:
        name, has = node["metadata"]["name"], milli(node["status"]["allocatable"]["cpu"]) / 1000
        if asked[name] > has:
            found.append(f"node {name} has {has} CPU and pods of {asked[name]}")
    return found


def partial(groups: Iterable[Json], pods: Iterable[Json]) -> list[str]:
    bound = Counter((pod["metadata"]["namespace"], _group(pod)) for pod in pods if pod["spec"].get("nodeName"))
    found = []
    for group in groups:
        least = (group["spec"]["schedulingPolicy"].get("gang") or {}).get("minCount") or 0
        count = bound[group["metadata"]["namespace"], group["metadata"]["name"]]
        if 0 < count < least:
            found.append(f"PodGroup {group['metadata']['name']} has {count} of {least} pods bound")
    return found
