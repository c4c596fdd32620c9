"""Our admission check with the real Kueue controller: `kueue-manager`, with its definitions in `kueue-crds` next to it.

Kueue's webhooks are not installed: they fill in defaults, and the objects here have everything.
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
METRICS = Path("/etc/kueue/metrics/certs/tls.crt")  # read by kueue-manager also where it serves no metrics


def settings(directory: Path) -> Path:
    """The configuration of kueue-manager, with a certificate that nothing looks at."""
    serving_certificate(directory)
    config = {
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "namespace": "kueue-system",
        "health": {"healthProbeBindAddress": f"127.0.0.1:{free_port()}"},
        "metrics": {"bindAddress": "0"},
        "webhook": {"host": "127.0.0.1", "port": free_port(), "certDir": str(directory)},
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "integrations": {"frameworks": ["batch/job"]},
    }
    (directory / "kueue.yaml").write_text(yaml.safe_dump(config))
    return directory / "kueue.yaml"


@pytest.fixture(scope="module")
def kueue(native: RealCluster) -> Iterator[RealCluster]:
    """With Kueue, our scheduler that answers its check, and a queue with more quota than there is room."""
    manager = program("kueue-manager")
    definitions = Path(manager).parent / "kueue-crds"
    if not definitions.is_dir():
        pytest.skip(f"the definitions of Kueue are not in {definitions}")
    if not METRICS.is_file():
        pytest.skip(f"kueue-manager needs a certificate in {METRICS.parent}")
    native.kubectl("apply", "--server-side", "-f", str(definitions))
    native.kubectl("apply", "-f", str(DEPLOY / "components" / "kueue" / "role.yaml"))
    native.namespace("kueue-system")
    native.start("scheduler", "--kueue")
    process = Process(
        native.directory / "kueue.log",
        manager,
        f"--config={settings(native.directory)}",
        f"--kubeconfig={native.kubeconfig}",
        "--feature-gates=VisibilityOnDemand=false",
    )
    native.parts.append(process)
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
