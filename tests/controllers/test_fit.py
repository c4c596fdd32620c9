"""A kubelet refuses what would over-commit its node, with the words users know."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.local.nodes.node_capacity import NodeUsage, amounts, pod_requests
from phalanx.local.nodes.views import KubeletPod, number

NANO = 10**9


def pod(*requests: dict[str, Any], **spec: Any) -> KubeletPod:
    containers = [{"name": f"c{i}", "resources": {"requests": request}} for i, request in enumerate(requests)]
    return msgspec.json.decode(msgspec.json.encode({"spec": {"containers": containers, **spec}}), type=KubeletPod)


def init(sidecar: bool = False, **requests: str) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "i", "resources": {"requests": requests}}
    return container | ({"restartPolicy": "Always"} if sidecar else {})


def test_containers_and_overhead_add_up() -> None:
    asked = pod_requests(pod({"cpu": "1500m", "nvidia.com/gpu": 1}, {"cpu": "0.5"}, overhead={"cpu": "100m"}))
    assert asked == {"cpu": 2100 * NANO // 1000, "nvidia.com/gpu": NANO}


def test_the_largest_moment_of_initialisation_counts() -> None:
    asked = pod_requests(pod({"cpu": "1"}, initContainers=[init(cpu="3"), init(sidecar=True, cpu="1"), init(cpu="4")]))
    assert asked == {"cpu": 5 * NANO}  # the last init container runs beside the sidecar
    asked = pod_requests(pod({"cpu": "9"}, initContainers=[init(sidecar=True, cpu="1"), init(cpu="4")]))
    assert asked == {"cpu": 10 * NANO}


def test_pod_level_amounts_stand_for_the_containers() -> None:
    asked = pod_requests(pod({"cpu": "1", "nvidia.com/gpu": 2}, resources={"requests": {"cpu": "5"}}))
    assert asked == {"cpu": 5 * NANO, "nvidia.com/gpu": 2 * NANO}


def test_limits_count_when_nothing_is_requested() -> None:
    limited = {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/gpu": "2"}}}]}
    view = msgspec.json.decode(msgspec.json.encode({"spec": limited}), type=KubeletPod)
    assert pod_requests(view) == {"nvidia.com/gpu": 2 * NANO}


def test_what_does_not_fit_is_refused_by_name() -> None:
    ledger = NodeUsage(amounts({"cpu": "4", "memory": "1Gi", "pods": "3"}))
    ledger.take("a", amounts({"cpu": "3"}))
    assert ledger.shortage(amounts({"cpu": "1"})) is None
    short = ledger.shortage(amounts({"cpu": "1500m"}))
    assert short is not None and short.reason == "OutOfcpu"
    assert short.message == ("Node didn't have enough resource: cpu, requested: 1500, used: 3000, capacity: 4000")
    short = ledger.shortage(amounts({"nvidia.com/gpu": "1"}))
    assert short is not None and short.reason == "OutOfnvidia.com/gpu" and "capacity: 0" in short.message


def test_slots_for_pods_run_out_and_come_back() -> None:
    ledger = NodeUsage(amounts({"cpu": "4", "pods": "1"}))
    ledger.take("a", amounts({"cpu": "1"}))
    ledger.take("a", amounts({"cpu": "1"}))  # once is enough
    short = ledger.shortage({})
    assert short is not None and short.reason == "OutOfpods"
    ledger.release("a")
    ledger.release("a")
    assert ledger.shortage(amounts({"cpu": "4"})) is None and ledger.used == {"cpu": 0}


def test_a_typo_in_an_annotation_stops_nothing() -> None:
    for text in ("soon", "-1", "nan", "inf", "1e99", ""):
        assert number({"k": text}, "k") is None
    assert number({}, "k") is None and number({"k": "1.5"}, "k") == 1.5
