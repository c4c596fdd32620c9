"""Our admission check with the real Kueue controller: `kueue-manager`.

Next to it the folder `kueue-crds` has its definitions, and its webhooks in `webhooks.yaml`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from phalanx.controllers.cluster_mode.kueue import CONTROLLER
from support.programs import program
from support.real_cluster import Json, Process, RealCluster, free_port, serving_certificate
from support.rights import DEPLOY
from support.waiting import eventually

API = "/apis/kueue.x-k8s.io/v1beta2"
QUOTA = 100  # CPUs; the nodes have 64
RACK, POOL = "example.com/rack", "example.com/pool"
HOOKS = ("kueue-x-k8s-io", "batch-v1-job")  # parts of their paths; those of other kinds are not served here
METRICS = Path("/etc/kueue/metrics/certs/tls.crt")  # read by kueue-manager also where it serves no metrics


def settings(directory: Path, port: int) -> Path:
    """The configuration of kueue-manager. `port`: of its webhooks."""
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(directory)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["batch/job"]},
    }
    (directory / "kueue.yaml").write_text(yaml.safe_dump(config))
    return directory / "kueue.yaml"


def served_webhooks(given: Path, directory: Path) -> Path:
    """Kueue's webhook configurations without the webhooks of kinds that its configuration here does not name."""
    bodies = [body for body in yaml.safe_load_all(given.read_text()) if body]
    for body in bodies:
        body["webhooks"] = [
            hook for hook in body["webhooks"] if any(part in hook["clientConfig"]["service"]["path"] for part in HOOKS)
        ]
    (directory / "kueue-hooks").mkdir()
    (directory / "kueue-hooks" / "webhooks.yaml").write_text(yaml.safe_dump_all(bodies))
    return directory / "kueue-hooks" / "webhooks.yaml"


@pytest.fixture(scope="module")
def kueue(native: RealCluster) -> Iterator[RealCluster]:
    """With Kueue, our scheduler that answers its check, and a queue with more quota than there is room."""
    manager = program("kueue-manager")
    definitions = Path(manager).parent / "kueue-crds"
    hooks = definitions / "webhooks.yaml"
    if not hooks.is_file():
        pytest.skip(f"the definitions and webhooks of Kueue are not in {definitions}")
    if not METRICS.is_file():
        pytest.skip(f"kueue-manager needs a certificate in {METRICS.parent}")
    native.define(definitions)
    native.start_controller_manager()
    native.kubectl("apply", "-f", str(DEPLOY / "components" / "kueue" / "role.yaml"))
    native.namespace("kueue-system")
    native.start("scheduler", "--kueue")
    port, bundle = free_port(), serving_certificate(native.directory)
    process = Process(
        native.directory / "kueue.log",
        manager,
        f"--config={settings(native.directory, port)}",
        f"--kubeconfig={native.kubeconfig}",
        "--feature-gates=VisibilityOnDemand=false",
    )
    native.parts.append(process)
    process.wait_for_log("Serving webhook server", 120)
    native.webhooks_of(served_webhooks(hooks, native.directory), port, bundle)
    typed = {"apiVersion": "kueue.x-k8s.io/v1beta2"}
    check = {"metadata": {"name": "placement"}, "spec": {"controllerName": CONTROLLER}}
    native.create(f"{API}/admissionchecks", {**typed, "kind": "AdmissionCheck", **check})
    native.create(f"{API}/resourceflavors", {**typed, "kind": "ResourceFlavor", "metadata": {"name": "any"}})
    flavor = {"name": "any", "resources": [{"name": "cpu", "nominalQuota": str(QUOTA)}]}
    spec: Json = {
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [flavor]}],
        "admissionChecksStrategy": {"admissionChecks": [{"name": "placement"}]},
    }
    native.create(f"{API}/clusterqueues", {**typed, "kind": "ClusterQueue", "metadata": {"name": "all"}, "spec": spec})
    native.namespace("kueue")
    local = {"metadata": {"name": "jobs"}, "spec": {"clusterQueue": "all"}}
    native.create(f"{API}/namespaces/kueue/localqueues", {**typed, "kind": "LocalQueue", **local})
    yield native
    assert process.alive, process.text[-3000:]


def ask(cluster: RealCluster, name: str, *sets: tuple[str, int, int]) -> None:
    """Queue a workload of pod sets: name, pods, CPUs of each pod."""
    pod_sets = []
    for label, count, cpu in sets:
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": str(cpu)}}}
        spec = {"schedulerName": "phalanx", "restartPolicy": "Never", "containers": [container]}
        pod_sets.append({"name": label, "count": count, "template": {"spec": spec}})
    body = {"metadata": {"name": name}, "spec": {"queueName": "jobs", "active": True, "podSets": pod_sets}}
    typed = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload"}
    cluster.create(f"{API}/namespaces/kueue/workloads", {**typed, **body})


def status(cluster: RealCluster, name: str) -> Json:
    found: Json = cluster.ask("GET", f"{API}/namespaces/kueue/workloads/{name}").get("status") or {}
    return found


def admitted(cluster: RealCluster, name: str) -> bool:
    conditions = status(cluster, name).get("conditions") or ()
    return any(each["type"] == "Admitted" and each["status"] == "True" for each in conditions)


def message(cluster: RealCluster, name: str) -> str:
    return str(next((each.get("message") for each in status(cluster, name).get("admissionChecks") or ()), ""))


def test_kueue_admits_a_workload_only_with_a_place_for_all_its_pod_sets(kueue: RealCluster) -> None:
    ask(kueue, "first", ("leader", 1, 4), ("workers", 6, 8))
    eventually(lambda: admitted(kueue, "first"), "the first workload is admitted", 120)
    assert "a place is reserved on" in message(kueue, "first")
    ask(kueue, "second", ("leader", 1, 4), ("workers", 2, 8))  # quota for it is left, and room for one worker
    eventually(lambda: "room" in message(kueue, "second"), "the check says why the second one waits", 120)
    assert not admitted(kueue, "second")
    kueue.ask("DELETE", f"{API}/namespaces/kueue/workloads/first")
    eventually(lambda: admitted(kueue, "second"), "the second workload is admitted", 180)


def test_a_job_starts_in_the_rack_that_kueue_assigned(kueue: RealCluster) -> None:
    kueue.ask("DELETE", f"{API}/namespaces/kueue/workloads/second")
    kind = "application/merge-patch+json"
    for number in range(8):
        labels = {RACK: f"r{number // 2}", POOL: "racks"}
        kueue.ask("PATCH", f"/api/v1/nodes/node-{number}", {"metadata": {"labels": labels}}, kind=kind)
    flavor = {"name": "racks", "resources": [{"name": "cpu", "nominalQuota": str(QUOTA)}]}
    made = (
        ("topologies", "Topology", "racks", {"levels": [{"nodeLabel": RACK}]}),
        ("resourceflavors", "ResourceFlavor", "racks", {"nodeLabels": {POOL: "racks"}, "topologyName": "racks"}),
        ("clusterqueues", "ClusterQueue", "racks", {
            "namespaceSelector": {},
            "resourceGroups": [{"coveredResources": ["cpu"], "flavors": [flavor]}],
            "admissionChecksStrategy": {"admissionChecks": [{"name": "placement"}]},
        }),
        ("namespaces/kueue/localqueues", "LocalQueue", "racks", {"clusterQueue": "racks"}),
    )  # fmt: skip
    for path, name_of_kind, name, spec in made:
        typed = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": name_of_kind, "metadata": {"name": name}}
        kueue.create(f"{API}/{path}", {**typed, "spec": spec})
    high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    kueue.create("/apis/scheduling.k8s.io/v1/priorityclasses", high)
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "5"}}}
    pods = {
        "schedulerName": "phalanx",
        "restartPolicy": "Never",
        "priorityClassName": "high",
        "containers": [container],
    }
    template = {"metadata": {"annotations": {"kueue.x-k8s.io/podset-required-topology": RACK}}, "spec": pods}
    job = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": template}
    metadata = {"name": "train", "labels": {"kueue.x-k8s.io/queue-name": "racks"}}
    suspended = kueue.create(
        "/apis/batch/v1/namespaces/kueue/jobs",
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job},
    )
    assert suspended["spec"]["suspend"] is True
    eventually(lambda: len(kueue.bound("kueue")) == 2, "the pods of the Job are bound", 180)
    racks = {int(pod["spec"]["nodeName"].partition("-")[2]) // 2 for pod in kueue.pods("kueue")}
    assert len(racks) == 1
    assert kueue.forbidden() == []
