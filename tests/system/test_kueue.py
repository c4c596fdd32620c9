"""The AdmissionCheck controller for Kueue, against the wire format of Kueue's kinds; the test plays Kueue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.base.clock import rfc3339
from phalanx.controllers.cluster_mode.kueue import CONTROLLER, FoundPlace, PlacementCheck, WantedPlace, manifests_of
from phalanx.local.api.rights import Rights
from support.local_cluster import LocalCluster, advance_until, local_cluster
from support.rights import Recording, grants

DEFINITIONS = Path(__file__).parents[2] / "examples" / "crds" / "kueue.yaml"
KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
WORKLOADS = f"{KUEUE}/namespaces/default/workloads"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
PODS = "/api/v1/namespaces/default/pods"
RACK = "topology.phalanx.dev/rack"


def started(directory: Path, **settings: Any) -> LocalCluster:
    """Four nodes with eight GPUs in two racks, and our check."""
    cluster = local_cluster(directory, nodes=4, topology="racks=2,gpus=8", **settings)
    cluster.start()
    cluster.apply(DEFINITIONS.read_text())
    check = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "AdmissionCheck", "metadata": {"name": "placement"}}
    cluster.create(f"{KUEUE}/admissionchecks", {**check, "spec": {"controllerName": CONTROLLER}})
    return cluster


@pytest.fixture
def up(tmp_path: Path) -> Iterator[LocalCluster]:
    cluster = started(tmp_path, kueue=True)
    yield cluster
    cluster.stop()


@pytest.fixture
def unattended(tmp_path: Path) -> Iterator[LocalCluster]:
    """The same without our controller."""
    cluster = started(tmp_path, run_scheduler=False)
    yield cluster
    cluster.stop()


def pod_set(count: int, gpus: int = 8, *, name: str = "main", **more: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "train", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    template = {"spec": {"containers": [container], "restartPolicy": "Never", **more.pop("spec", {})}}
    return {"name": name, "count": count, "template": template, **more}


def reserve_quota(up: LocalCluster, name: str, *sets: dict[str, Any]) -> None:
    """Be Kueue: the workload of the suspended Job `name` has its quota, and our check is pending."""
    count, template = sets[0]["count"], sets[0]["template"]
    spec = {"suspend": True, "parallelism": count, "completions": count, "template": template}
    job = up.create(JOBS, {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": job["metadata"]["uid"]}
    meta = {"name": f"job-{name}", "ownerReferences": [owner]}
    body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "metadata": meta, "spec": {"podSets": sets}}
    up.create(WORKLOADS, body)
    now = {"lastTransitionTime": rfc3339(up.cluster.server.context.clock.now())}
    reserved = {"type": "QuotaReserved", "status": "True", "reason": "QuotaReserved", "message": "", **now}
    check = {"name": "placement", "state": "Pending", "message": "", **now}
    status = {"conditions": [reserved], "admissionChecks": [check], "admission": {"clusterQueue": "q"}}
    up.patch(f"{WORKLOADS}/job-{name}/status", {"status": status})


def check(up: LocalCluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = up.get(f"{WORKLOADS}/job-{name}")["status"]["admissionChecks"][0]
    return found


def answered(up: LocalCluster, name: str, state: str) -> dict[str, Any]:
    return advance_until(up, lambda: (found := check(up, name))["state"] == state and found["message"] and found, 2.0)  # type: ignore[no-any-return]


def admit(up: LocalCluster, name: str) -> None:
    """Be Kueue: start the Job."""
    up.patch(f"{JOBS}/{name}", {"spec": {"suspend": False}})


def start(up: LocalCluster, name: str, count: int, gpus: int = 8) -> None:
    """Create pods that no queue holds back."""
    for i in range(count):
        container = {"name": "main", "image": "train", "resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
        spec = {"containers": [container]}
        up.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": f"{name}-{i}"}, "spec": spec})


def nodes_of(up: LocalCluster, name: str) -> list[str]:
    pods = (pod for pod in up.list(PODS) if pod["metadata"]["name"].startswith(f"{name}-"))
    return [node for pod in pods if (node := pod["spec"].get("nodeName"))]


def test_a_workload_is_ready_with_a_place_that_is_kept_until_its_pods_arrive(up: LocalCluster) -> None:
    advance_until(up, lambda: up.get(f"{KUEUE}/admissionchecks/placement").get("status"), 2.0)
    active = up.get(f"{KUEUE}/admissionchecks/placement")["status"]["conditions"][0]
    assert (active["type"], active["status"]) == ("Active", "True")
    reserve_quota(up, "train", pod_set(2, topologyRequest={"required": RACK}))
    ready = answered(up, "train", "Ready")
    assert "a place is reserved on" in ready["message"]
    start(up, "thief", 4)  # its pods fit on the two other nodes only
    advance_until(up, lambda: len(nodes_of(up, "thief")) == 2, 2.0)
    up.advance(30)
    assert len(nodes_of(up, "thief")) == 2
    admit(up, "train")
    advance_until(up, lambda: len(nodes_of(up, "train")) == 2, 2.0)
    racks = {n["metadata"]["name"]: n["metadata"]["labels"][RACK] for n in up.list("/api/v1/nodes")}
    assert len({racks[node] for node in nodes_of(up, "train")}) == 1


def test_a_workload_without_a_place_says_why_and_is_tried_again_by_kueue(up: LocalCluster) -> None:
    reserve_quota(up, "large", pod_set(3, topologyRequest={"required": RACK}))
    pending = answered(up, "large", "Pending")
    assert "fits 2" in pending["message"]
    retry = answered(up, "large", "Retry")  # after a minute: others may have its quota
    assert "fits 2" in retry["message"]
    start(up, "other", 4)  # nothing is reserved for it
    advance_until(up, lambda: len(nodes_of(up, "other")) == 4, 2.0)


def test_two_workloads_get_places_that_do_not_overlap(up: LocalCluster) -> None:
    names = ("one", "two", "three")
    for name in names:
        reserve_quota(up, name, pod_set(2))
    advance_until(up, lambda: sorted(check(up, name)["state"] for name in names) == ["Pending", "Ready", "Ready"], 2.0)
    nodes = [node for name in names for node in check(up, name)["message"].split() if node.startswith("node-")]
    assert len(nodes) == len({node.strip(",") for node in nodes}) == 4


def test_a_place_is_free_again_when_its_workload_is_gone(up: LocalCluster) -> None:
    reserve_quota(up, "train", pod_set(4))
    answered(up, "train", "Ready")
    start(up, "other", 4)
    up.advance(10)
    assert not nodes_of(up, "other")
    up.delete(f"{WORKLOADS}/job-train")
    advance_until(up, lambda: len(nodes_of(up, "other")) == 4, 2.0)


@pytest.mark.parametrize("classes", [("high", "high"), ("high", ""), ("", "")])
def test_pods_with_a_priority_get_a_place(up: LocalCluster, classes: tuple[str, str]) -> None:
    kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    up.apply(kind)
    sets = [
        pod_set(1, name=name, spec={"priorityClassName": chosen} if chosen else {})
        for name, chosen in zip(("leader", "workers"), classes, strict=True)
    ]
    reserve_quota(up, "urgent", *sets)
    assert "a place is reserved on" in answered(up, "urgent", "Ready")["message"]


def test_pods_of_another_scheduler_need_no_place(up: LocalCluster) -> None:
    reserve_quota(up, "foreign", pod_set(100, spec={"schedulerName": "somebody-else"}))
    assert "another scheduler" in answered(up, "foreign", "Ready")["message"]


def test_pod_sets_without_pods_need_no_place(up: LocalCluster) -> None:
    """Workers of a Ray cluster that its autoscaler adds later, or replicas that another set has."""
    reserve_quota(up, "head", pod_set(2), pod_set(0, name="workers"))
    assert "a place is reserved on" in answered(up, "head", "Ready")["message"]
    reserve_quota(up, "empty", pod_set(0))
    assert answered(up, "empty", "Ready")["message"] == "it has no pods"


def test_a_pod_set_to_which_kueue_assigned_no_pods_has_none() -> None:
    status = {"admission": {"podSetAssignments": [{"name": "driver", "count": 0}]}}
    spec = {"podSets": [pod_set(1), pod_set(1, name="driver")]}
    found = manifests_of({"metadata": {"name": "w", "namespace": "ns"}, "spec": spec, "status": status}, {})
    assert [each["kind"] for each in found] == ["PodGroup", "Pod"]


def test_counts_flavors_and_pod_sets_are_those_that_kueue_will_start() -> None:
    gated = pod_set(4, spec={"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]})
    assigned = {"name": "main", "count": 2, "flavors": {"nvidia.com/gpu": "spot"}}
    update = {"name": "driver", "nodeSelector": {"pool": "x"}}
    status = {
        "admission": {"podSetAssignments": [assigned]},
        "admissionChecks": [{"name": "other", "podSetUpdates": [update]}],
    }
    spec = {"podSets": [gated, pod_set(1, name="driver")]}
    workload = {"metadata": {"name": "w", "namespace": "ns"}, "spec": spec, "status": status}
    flavors = {"spot": {"nodeLabels": {"tier": "spot"}, "tolerations": [{"key": "spot", "operator": "Exists"}]}}
    found = manifests_of(workload, flavors)
    assert [each["kind"] for each in found] == ["CompositePodGroup", "PodGroup", "Pod", "Pod", "PodGroup", "Pod"]
    main, driver = found[2]["spec"], found[5]["spec"]
    assert main["nodeSelector"] == {"tier": "spot"} and main["tolerations"] == [{"key": "spot", "operator": "Exists"}]
    assert "schedulingGates" not in main and driver["nodeSelector"] == {"pool": "x"}


def test_the_place_is_in_the_domains_that_kueue_assigned() -> None:
    slices = [
        {
            "domainCount": 2,
            "valuesPerLevel": [
                {"universal": "r1"},
                {"individual": {"prefix": "n-", "roots": ["2", "3"], "suffix": "x"}},
            ],
            "podCounts": {"individual": [1, 2]},
        },
        {
            "domainCount": 1,
            "valuesPerLevel": [{"universal": "r2"}, {"universal": "n-9"}],
            "podCounts": {"universal": 1},
        },
    ]
    topology = {"levels": [RACK, "kubernetes.io/hostname"], "slices": slices}
    assigned = {"name": "main", "count": 4, "flavors": {}, "topologyAssignment": topology}
    workload = {"metadata": {"name": "w", "namespace": "ns"}, "spec": {"podSets": [pod_set(4)]}}
    status = {"admission": {"podSetAssignments": [assigned]}}
    found = manifests_of({**workload, "status": status}, {})
    selectors = [each["spec"]["nodeSelector"] for each in found if each["kind"] == "Pod"]
    pairs = [(each[RACK], each["kubernetes.io/hostname"]) for each in selectors]
    assert pairs == [("r1", "n-2x"), ("r1", "n-3x"), ("r1", "n-3x"), ("r2", "n-9")]


def test_pod_sets_of_one_group_get_one_domain(up: LocalCluster) -> None:
    """As Kueue makes them of a LeaderWorkerSet with `kueue.x-k8s.io/podset-group-name`."""
    together = {"required": RACK, "podSetGroupName": "replica"}
    start(up, "other", 1)
    advance_until(up, lambda: nodes_of(up, "other"), 2.0)
    leader, workers = (
        pod_set(1, 4, name="leader", topologyRequest=together),
        pod_set(1, 8, name="workers", topologyRequest=together),
    )
    reserve_quota(up, "train", leader, workers, pod_set(1, 1, name="data"))
    ready = answered(up, "train", "Ready")
    racks = {n["metadata"]["name"]: n["metadata"]["labels"][RACK] for n in up.list("/api/v1/nodes")}
    (taken,) = nodes_of(up, "other")
    named = {name for name in racks if name in ready["message"]}
    assert {name for name in racks if racks[name] != racks[taken]} <= named


def test_pod_sets_of_one_group_that_fit_in_no_domain_together_wait(up: LocalCluster) -> None:
    together = {"required": RACK, "podSetGroupName": "replica"}
    sets = [pod_set(1, name="leader", topologyRequest=together), pod_set(2, name="workers", topologyRequest=together)]
    reserve_quota(up, "train", *sets)
    assert "one " in answered(up, "train", "Pending")["message"]
    reserve_quota(up, "apart", *({**each, "topologyRequest": {"required": RACK}} for each in sets))
    answered(up, "apart", "Ready")


@pytest.mark.parametrize("others", [[], [pod_set(1, name="data")]], ids=["alone", "beside another"])
def test_the_annotation_of_a_pod_set_group_counts_where_the_request_is_not_filled_in(others: list[Any]) -> None:
    annotations = {"kueue.x-k8s.io/podset-required-topology": RACK, "kueue.x-k8s.io/podset-group-name": "replica"}
    sets = [pod_set(1, name=name) for name in ("leader", "workers")]
    for each in sets:
        each["template"]["metadata"] = {"annotations": annotations}
    workload = {"metadata": {"name": "w", "namespace": "ns"}, "spec": {"podSets": sets + others}}
    found = {each["metadata"]["name"]: each["spec"] for each in manifests_of({**workload, "status": {}}, {})}
    replica = found["w-group-0"]
    assert replica["schedulingConstraints"] == {"topology": [{"key": RACK}]}
    assert found["w-leader"]["parentCompositePodGroupName"] == found["w-workers"]["parentCompositePodGroupName"]
    assert "schedulingConstraints" not in found["w-leader"]
    assert replica.get("parentCompositePodGroupName") == ("w" if others else None)


def test_the_optional_role_allows_exactly_what_the_checks_take(unattended: LocalCluster) -> None:
    reserve_quota(unattended, "train", pod_set(2))
    server = unattended.cluster.server
    client = Recording(server.client("test"), Rights(server.context.store), "phalanx-scheduler")

    class Everywhere:
        scheduler_names = ("default-scheduler",)
        ready = True

        async def reserve(self, wanted: WantedPlace) -> FoundPlace:
            return FoundPlace(placed=False, message=f"no room for {len(wanted.manifests) - 1} pods")

        def release(self, namespace: str, name: str) -> None: ...

        def held(self, namespace: str, name: str) -> bool:
            return False

        def lost(self) -> list[tuple[str, str]]:
            return []

    made = PlacementCheck(client, Everywhere(), server.context.clock)  # type: ignore[arg-type]
    unattended.call(made.reconcile())
    role = grants("phalanx-kueue", "components/kueue/role.yaml")
    assert {grant.use for grant in role} == set(client.uses)
