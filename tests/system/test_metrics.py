"""/metrics of a scheduler: kube-scheduler's names with their labels, ours for groups, and what uses them in deploy/."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from support.local_cluster import LocalCluster
from support.manifests import gang, pod

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
PODS = "/api/v1/namespaces/default/pods"

# Names of kube-scheduler 1.37 (pkg/scheduler/metrics) with their labels, as far as they mean something here.
KUBE = {
    "schedule_attempts_total": {"result", "profile"},
    "scheduling_attempt_duration_seconds": {"result", "profile"},
    "scheduling_algorithm_duration_seconds": set(),
    "podgroup_schedule_attempts_total": {"result", "profile"},
    "podgroup_scheduling_attempt_duration_seconds": {"result", "profile"},
    "podgroup_scheduling_algorithm_duration_seconds": set(),
    "event_handling_duration_seconds": {"event"},
    "preemption_victims": set(),
    "preemption_attempts_total": set(),
    "workload_preemption_attempts_total": {"result"},
    "preemption_workload_disruptions": {"preemptor"},
    "preemption_execution_duration_seconds": {"preemptor", "result"},
    "preemption_pdb_violations_total": {"preemptor"},
    "workload_preemption_victims": set(),
    "permit_wait_duration_seconds": {"result"},
    "pending_pods": {"queue"},
    "queued_entities": {"queue", "type"},
    "queue_incoming_pods_total": {"queue", "event"},
    "queue_incoming_entities_total": {"queue", "event", "type"},
    "pod_scheduling_sli_duration_seconds": {"attempts"},
    "pod_scheduling_attempts": set(),
    "framework_extension_point_duration_seconds": {"extension_point", "status", "profile"},
    "plugin_execution_duration_seconds": {"plugin", "extension_point", "status"},
    "cache_size": {"type"},
    "unschedulable_pods": {"plugin", "profile"},
    "async_api_call_execution_duration_seconds": {"call_type", "result"},
    "async_api_call_execution_total": {"call_type", "result"},
    "pending_async_api_calls": {"call_type"},
    "pod_scheduled_after_flush_total": set(),
}
DEVICES = {"profile", "driver", "status"}  # labels of scheduler_dra_bindingconditions_*
# The others: goroutines, caches and workers that do not exist here. docs/metrics.md says so.
ABSENT = {
    "goroutines", "inflight_events", "batch_attempts_total", "batch_cache_flushed_total",
    "batch_rescore_attempts_total", "batch_rescore_duration_seconds", "get_node_hint_duration_seconds",
    "store_schedule_results_duration_seconds", "preemption_goroutines_duration_seconds",
    "preemption_goroutines_execution_total", "queueing_hint_execution_duration_seconds",
    "pre_queueing_hint_evaluations_total", "plugin_evaluation_total", "generated_placements_total",
    "placement_evaluations_total",
    "placement_evaluation_duration_seconds",
    "preemption_evaluation_duration_seconds",
}  # fmt: skip


class Scraped:
    def __init__(self, text: str) -> None:
        self.samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]

    def labels(self, name: str) -> set[str]:
        found = [set(s.labels) - {"le"} for s in self.samples if re.fullmatch(f"{name}(_bucket|_total)?", s.name)]
        assert found, f"{name} has no value"
        return found[0]

    def value(self, name: str, **labels: str) -> float:
        return sum(s.value for s in self.samples if s.name == name and labels.items() <= s.labels.items())


@pytest.fixture(scope="module")
def scraped(start_cluster: Callable[..., LocalCluster]) -> Scraped:
    """What is measured of a gang that runs, one that lacks a member, one that preempts, and pods that fit nowhere."""
    cluster = start_cluster(nodes=4, topology="zones=2,racks=2", run_controllers=False)
    for name, value in (("low", 1), ("high", 100)):
        cluster.apply({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": value,
                       "metadata": {"name": name}})  # fmt: skip
    half = int(cluster.get("/api/v1/nodes")["items"][0]["status"]["allocatable"]["cpu"]) // 2 + 1
    cluster.apply(*gang("runs", 2, half, priority="low"))
    cluster.apply(*gang("lacks", 3, 1, priority="low")[:2])
    cluster.apply(*(pod(f"single-{n}", half, priorityClassName="low") for n in range(2)))
    cluster.wait(PODS, lambda pods: sum(bool(p["spec"].get("nodeName")) for p in pods["items"]) == 4)
    cluster.apply(pod("huge", 100000, priorityClassName="low"))
    cluster.apply(pod("urgent", half, priorityClassName="high"))
    cluster.apply(*gang("team", 2, half, priority="high"))
    placed = {"urgent", "team-0", "team-1"}

    def bound(pods: Json) -> bool:
        return {p["metadata"]["name"] for p in pods["items"] if p["spec"].get("nodeName")} >= placed

    cluster.wait(PODS, bound)

    def message(found: Json) -> bool:
        return any(c["reason"] == "Unschedulable" for c in found["status"].get("conditions") or ())

    cluster.wait(f"{PODS}/huge", message)
    return Scraped(cluster.ask("GET", "/metrics").body.decode())


def test_the_names_and_labels_are_those_of_kube_scheduler(scraped: Scraped) -> None:
    assert {name: scraped.labels(f"scheduler_{name.removesuffix('_total')}") for name in KUBE} == KUBE


def test_attempts_and_queues_are_measured(scraped: Scraped) -> None:
    value = scraped.value
    bound = value("scheduler_schedule_attempts_total", result="scheduled")
    assert bound >= 7
    assert value("scheduler_pod_scheduling_sli_duration_seconds_count") == bound
    assert value("scheduler_pod_scheduling_attempts_count") == bound
    assert value("scheduler_scheduling_attempt_duration_seconds_count", result="scheduled") == bound
    assert value("scheduler_async_api_call_execution_total", call_type="pod_binding", result="success") == bound
    assert value("scheduler_scheduling_attempt_duration_seconds_count", result="unschedulable") >= 1
    assert value("scheduler_pending_pods", queue="incomplete") == 1
    assert value("scheduler_pending_pods", queue="unschedulable") >= 1
    assert value("scheduler_queue_incoming_pods_total", queue="active", event="UnscheduledPodAdd") == 4
    assert value("scheduler_queue_incoming_pods_total", queue="active", event="GateRemoved") == 4  # whole gangs
    assert value("scheduler_queue_incoming_entities_total", queue="active", event="GateRemoved", type="podgroup") == 2
    assert value("scheduler_queue_incoming_pods_total", queue="unschedulable") >= 1
    assert value("scheduler_unschedulable_pods", plugin="NodeResourcesFit") >= 1
    assert value("scheduler_cache_size", type="nodes") == 4


def test_preemptions_are_measured_for_pods_and_groups(scraped: Scraped) -> None:
    value = scraped.value
    assert value("scheduler_preemption_attempts_total") >= 1
    assert value("scheduler_preemption_victims_count") + value("scheduler_workload_preemption_victims_count") >= 2
    assert value("scheduler_workload_preemption_attempts_total", result="Success") >= 1
    evicted = value("scheduler_preemption_workload_disruptions_sum")
    assert (
        1 <= evicted <= value("scheduler_preemption_victims_sum") + value("scheduler_workload_preemption_victims_sum")
    )
    assert value("scheduler_preemption_execution_duration_seconds_count", result="success") >= 2
    assert value("scheduler_preemption_pdb_violations_total") == 0


def test_plugins_are_sampled(scraped: Scraped) -> None:
    value = scraped.value
    assert value("scheduler_plugin_execution_duration_seconds_count") > 0
    assert value("scheduler_framework_extension_point_duration_seconds_count", extension_point="Filter") > 0


def test_groups_are_measured(scraped: Scraped) -> None:
    value = scraped.value
    for name in ("complete", "place", "bind"):
        assert value(f"phalanx_group_{name}_seconds_count") == 2
    assert value("phalanx_groups", state="Waiting") >= 1
    assert value("phalanx_groups", state="Running") >= 1
    levels = {s.labels["level"] for s in scraped.samples if s.name == "phalanx_fragmentation_ratio"}
    assert "node" in levels and any(level.endswith("/zone") for level in levels)
    assert all(0 <= s.value <= 1 for s in scraped.samples if s.name == "phalanx_fragmentation_ratio")
    assert value("phalanx_promises_total", result="given") == 0


def test_waits_for_binding_conditions_are_measured_by_driver(start_cluster: Callable[..., LocalCluster]) -> None:
    cluster = start_cluster(nodes=1, run_controllers=False)
    (name,) = (each["metadata"]["name"] for each in cluster.get("/api/v1/nodes")["items"])
    device = {"name": "d0", "bindsToNode": True, "bindingConditions": ["Ready"], "bindingFailureConditions": ["Broken"]}
    pool = {"name": "pool", "generation": 1, "resourceSliceCount": 1}
    typed = {"apiVersion": "resource.k8s.io/v1"}
    exactly = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": 1}
    cluster.apply(
        {**typed, "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}},
        {**typed, "kind": "ResourceSlice", "metadata": {"name": "slice"},
         "spec": {"driver": "gpus.example.com", "nodeName": name, "pool": pool, "devices": [device]}},
        {**typed, "kind": "ResourceClaim", "metadata": {"name": "c"},
         "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}},
        pod("p", 1, resourceClaims=[{"name": "c", "resourceClaimName": "c"}]),
    )  # fmt: skip
    claim = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims/c"
    cluster.wait(claim, lambda found: found.get("status", {}).get("allocation"))
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "Made",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    prepared = {"driver": "gpus.example.com", "pool": "pool", "device": "d0", "conditions": [ready]}
    cluster.patch(f"{claim}/status", {"status": {"devices": [prepared]}})
    cluster.wait(f"{PODS}/p", lambda found: found["spec"].get("nodeName"))
    scraped = Scraped(cluster.ask("GET", "/metrics").body.decode())
    labels = {"profile": "default-scheduler", "driver": "gpus.example.com", "status": "success"}
    assert scraped.value("scheduler_dra_bindingconditions_allocations_total", **labels) == 1
    assert scraped.value("scheduler_dra_bindingconditions_wait_duration_seconds_count", **labels) == 1
    assert scraped.labels("scheduler_dra_bindingconditions_allocations") == DEVICES


def test_the_page_says_which_names_of_kube_scheduler_are_absent(scraped: Scraped) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    (table,) = re.findall(r"do not exist here:\n(.*?)\n## ", page, flags=re.DOTALL)
    assert set(re.findall(r"[a-z]+(?:_[a-z]+)+|goroutines(?=,)", table)) - {"scheduler_"} == ABSENT
    assert not any(s.name.removeprefix("scheduler_") in ABSENT for s in scraped.samples)


def test_the_board_and_the_rules_find_values(scraped: Scraped) -> None:
    """Every metric that they name has a value on a cluster in which something was scheduled, or is another part's."""
    folder = ROOT / "deploy" / "monitoring"
    board = json.loads((folder / "grafana-phalanx.json").read_text())
    rules = yaml.safe_load((folder / "prometheusrule.yaml").read_text())["spec"]["groups"][0]["rules"]
    texts = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    texts += [rule["expr"] for rule in rules]
    named = {name for text in texts for name in re.findall(r"(?:phalanx|scheduler)_[a-z_]+", text)}
    others = {name for name in named if re.match("phalanx_(controller|webhook|demand)_", name)}
    there = {sample.name for sample in scraped.samples}
    assert sorted(named - others - there) == []
