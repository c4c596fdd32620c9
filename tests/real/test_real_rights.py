"""deploy/ on a real API server: it is accepted, and its roles are enough for what the parts do."""

from __future__ import annotations

import re
import subprocess

import pytest

from support.programs import needs_kubernetes, program
from support.real_cluster import CUSTOM, RealCluster, Refused
from support.waiting import eventually

TO_COME = "scheduling.phalanx.dev/pods-to-come"


@pytest.fixture(scope="module")
def running(real: RealCluster) -> RealCluster:
    """With scheduler and controllers under their own service accounts."""
    real.start("scheduler")
    real.webhook_at(real.start("controllers"))
    return real


def test_a_gang_is_bound_whole_with_the_shipped_roles(running: RealCluster) -> None:
    space = running.namespace("gangs")
    running.gang(space, "fits", 6)
    running.gang(space, "too-large", 3, cpu="9")
    running.wait_whole(space, "fits")

    def conditions(name: str) -> dict[str, str]:
        group = running.ask("GET", f"{running.group_api}/namespaces/{space}/podgroups/{name}")
        found = (group.get("status") or {}).get("conditions") or ()
        return {condition["type"]: condition["reason"] for condition in found}

    eventually(lambda: conditions("fits").get("PodGroupInitiallyScheduled") == "Scheduled", "the gang is reported")
    eventually(lambda: "PodGroupInitiallyScheduled" in conditions("too-large"), "the other one, too")
    eventually(lambda: "scheduling.phalanx.dev/Healthy" in conditions("fits"), "and its health")
    assert running.bound(space) == [f"fits-{number}" for number in range(6)]
    assert running.broken() == []
    assert running.forbidden() == []


def test_the_first_state_is_streamed_and_not_listed(running: RealCluster) -> None:
    """WatchList: one watch per resource, which begins with the objects that exist."""
    needs_kubernetes(34, "streaming is on by default from")
    shown = subprocess.run([program("etcd"), "--version"], capture_output=True, text=True, check=True).stdout
    version = tuple(map(int, re.findall(r"\d+", shown)[:3]))
    if version < (3, 4, 25) or (3, 5) < version < (3, 5, 8):
        pytest.skip(f"etcd {version} cannot mark the end of the first state")
    log = (running.directory / "audit.log").read_text()
    of_scheduler = [line for line in log.splitlines() if "phalanx-scheduler" in line and "/api/v1/pods?" in line]
    assert any("sendInitialEvents=true" in line for line in of_scheduler)
    assert not any("limit=2000" in line for line in of_scheduler)


def test_a_policy_is_stored_and_gets_its_status(running: RealCluster) -> None:
    space = running.namespace("policies")
    running.gang(space, "train", 2)
    path = f"/apis/{CUSTOM}/v1alpha1/namespaces/{space}/workloadpolicies"
    target = {"apiGroup": running.group_api.split("/")[2], "kind": "PodGroup", "name": "train"}
    spec = {"targetRef": target, "rescheduling": {"policy": "Restart"}}
    running.create(
        path,
        {
            "apiVersion": f"{CUSTOM}/v1alpha1",
            "kind": "WorkloadPolicy",
            "metadata": {"name": "train"},
            "spec": spec,
        },
    )
    eventually(
        lambda: (running.ask("GET", f"{path}/train").get("status") or {}).get("matchedGroups") == 1,
        "the policy says which groups it applies to",
    )
    with pytest.raises(Refused) as refused:
        running.create(
            path,
            {
                "apiVersion": f"{CUSTOM}/v1alpha1",
                "kind": "WorkloadPolicy",
                "metadata": {"name": "wrong"},
                "spec": {**spec, "rescheduling": {"policy": 7}},
            },
        )
    assert refused.value.code == 422
    assert running.forbidden() == []


def test_devices_are_allocated_with_the_shipped_roles(running: RealCluster) -> None:
    needs_kubernetes(34, "resource.k8s.io/v1 needs")
    space, api = running.namespace("devices"), "/apis/resource.k8s.io/v1"
    version, driver = "resource.k8s.io/v1", "gpu.example.com"
    selector = {"cel": {"expression": f"device.driver == '{driver}'"}}
    body = {
        "apiVersion": version,
        "kind": "DeviceClass",
        "metadata": {"name": "gpu"},
        "spec": {"selectors": [selector]},
    }
    running.create(f"{api}/deviceclasses", body)
    pool = {"name": "node-0", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": driver, "nodeName": "node-0", "pool": pool, "devices": [{"name": "g0"}, {"name": "g1"}]}
    body = {"apiVersion": version, "kind": "ResourceSlice", "metadata": {"name": "node-0"}, "spec": spec}
    running.create(f"{api}/resourceslices", body)
    claims = f"{api}/namespaces/{space}/resourceclaims"
    # Written by a client that puts blanks into its JSON, as Python's does.
    opaque = {"driver": driver, "parameters": {"kind": "Mode", "mode": "shared"}}
    for name, config in (("plain", []), ("configured", [{"opaque": opaque}])):
        request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
        spec = {"devices": {"requests": [request], "config": config}}
        body = {"apiVersion": version, "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
        running.create(claims, body)
        pod = {
            "metadata": {"name": name},
            "spec": {
                "schedulerName": "phalanx",
                "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": "gpu"}]}}],
                "resourceClaims": [{"name": "gpu", "resourceClaimName": name}],
            },
        }
        running.create(f"/api/v1/namespaces/{space}/pods", pod)
    eventually(lambda: running.bound(space) == ["configured", "plain"], "both pods have their device")
    allocations = [claim["status"]["allocation"]["devices"]["results"] for claim in running.items(claims)]
    assert sorted(result["device"] for results in allocations for result in results) == ["g0", "g1"]
    assert running.forbidden() == []


def test_only_the_controllers_may_announce_pods(running: RealCluster) -> None:
    space = running.namespace("announced")
    path = f"{running.group_api}/namespaces/{space}/podgroups"
    body = {
        "apiVersion": running.group_api.removeprefix("/apis/"),
        "kind": "PodGroup",
        "metadata": {"name": "room", "annotations": {TO_COME: "{}"}},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }

    def refused() -> bool:
        try:
            running.ask("POST", f"{path}?dryRun=All", body)
        except Refused as problem:
            return problem.code == 403 and "reserves room" in str(problem)
        return False

    eventually(refused, "the admission policy is in force")


def test_composites_are_protected_until_their_children_are_gone(running: RealCluster) -> None:
    space = running.namespace("trees")
    group = running.group_api.split("/")[2]
    composites = f"/apis/{group}/v1alpha3/namespaces/{space}/compositepodgroups"
    ref = {"workloadName": "w", "templateName": "t"}
    running.create(
        composites,
        {
            "apiVersion": f"{group}/v1alpha3",
            "kind": "CompositePodGroup",
            "metadata": {"name": "root"},
            "spec": {"workloadRef": ref, "schedulingPolicy": {"basic": {}}},
        },
    )
    assert running.ask("GET", f"{composites}/root")["metadata"]["finalizers"] == [
        "scheduling.phalanx.dev/compositepodgroup-protection"
    ]
    running.create(
        f"{running.group_api}/namespaces/{space}/podgroups",
        {
            "apiVersion": f"{group}/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "leaf"},
            "spec": {
                "workloadRef": ref,
                "parentCompositePodGroupName": "root",
                "schedulingPolicy": {"gang": {"minCount": 2}},
            },
        },
    )
    running.ask("DELETE", f"{composites}/root")
    assert running.ask("GET", f"{composites}/root")["metadata"]["deletionTimestamp"]
    leaf = f"{running.group_api}/namespaces/{space}/podgroups/leaf"
    running.ask("PATCH", leaf, {"metadata": {"finalizers": None}}, kind="application/merge-patch+json")
    running.ask("DELETE", leaf)

    def gone() -> bool:
        try:
            running.ask("GET", f"{composites}/root")
        except Refused as problem:
            return problem.code == 404
        return False

    eventually(gone, "the composite is deleted after its child")
    assert running.forbidden() == []


def test_templates_below_a_whole_one_are_disrupted_as_a_whole(running: RealCluster) -> None:
    space = running.namespace("templates")
    path = f"{running.group_api}/namespaces/{space}/workloads"

    def workload(name: str, mode: str) -> dict[str, object]:
        leaf = {"name": "leaf", "disruptionMode": {mode: {}}, "schedulingPolicy": {"basic": {}}}
        tree = {
            "name": "tree",
            "disruptionMode": {"all": {}},
            "schedulingPolicy": {"basic": {}},
            "podGroupTemplates": [leaf],
        }
        return {
            "apiVersion": running.group_api.removeprefix("/apis/"),
            "kind": "Workload",
            "metadata": {"name": name},
            "spec": {"compositePodGroupTemplates": [tree]},
        }

    with pytest.raises(Refused, match="needs disruptionMode all"):
        running.create(path, workload("in-parts", "single"))
    running.create(path, workload("as-a-whole", "all"))
