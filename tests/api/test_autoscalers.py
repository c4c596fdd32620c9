"""HorizontalPodAutoscalers in autoscaling/v1 and v2: one object, two ways to write it, nothing lost between them."""

from __future__ import annotations

import json
from typing import Any

from support.api_world import World

V1 = "/apis/autoscaling/v1/namespaces/ns/horizontalpodautoscalers"
V2 = "/apis/autoscaling/v2/namespaces/ns/horizontalpodautoscalers"
TARGET = {"kind": "Deployment", "name": "web", "apiVersion": "apps/v1"}


def scaler(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "h"}, "spec": {"scaleTargetRef": TARGET, "maxReplicas": 5, **spec}}


def show(world: World, path: str) -> Any:
    """As a client of that version reads it."""
    return world.patch(path, {})


def test_a_share_of_cpu_is_a_number_in_v1_and_a_metric_in_v2(world: World) -> None:
    made = world.create(V1, scaler(targetCPUUtilizationPercentage=60))
    assert made["apiVersion"] == "autoscaling/v1"
    assert made["spec"] == {
        "scaleTargetRef": TARGET, "minReplicas": 1, "maxReplicas": 5, "targetCPUUtilizationPercentage": 60,
    }  # fmt: skip
    target = {"type": "Utilization", "averageUtilization": 60}
    assert show(world, f"{V2}/h")["spec"]["metrics"] == [
        {"type": "Resource", "resource": {"name": "cpu", "target": target}}
    ]


def test_what_v1_has_no_field_for_is_kept_in_annotations(world: World) -> None:
    metrics = [
        {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
        {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}},
        {
            "type": "Object",
            "object": {
                "describedObject": TARGET,
                "metric": {"name": "hits", "selector": {"matchLabels": {"a": "b"}}},
                "target": {"type": "Value", "value": "10"},
            },
        },
        {"type": "Pods", "pods": {"metric": {"name": "p"}, "target": {"type": "AverageValue", "averageValue": "5"}}},
    ]
    behavior = {"scaleDown": {"stabilizationWindowSeconds": 60}}
    before = world.create(V2, scaler(metrics=metrics, behavior=behavior))
    older = show(world, f"{V1}/h")
    assert older["spec"]["targetCPUUtilizationPercentage"] == 70 and "metrics" not in older["spec"]
    said = older["metadata"]["annotations"]
    others = json.loads(said["autoscaling.alpha.kubernetes.io/metrics"])
    assert others[0] == {"type": "Resource", "resource": {"name": "memory", "targetAverageValue": "1Gi"}}
    assert others[1]["object"] == {
        "target": TARGET, "metricName": "hits", "selector": {"matchLabels": {"a": "b"}}, "targetValue": "10",
    }  # fmt: skip
    assert json.loads(said["autoscaling.alpha.kubernetes.io/behavior"]) == before["spec"]["behavior"]
    older["spec"]["maxReplicas"] = 9
    world.update(f"{V1}/h", older)
    after = show(world, f"{V2}/h")
    assert after["spec"]["maxReplicas"] == 9 and after["spec"]["behavior"] == before["spec"]["behavior"]
    assert sorted(map(str, after["spec"]["metrics"])) == sorted(map(str, before["spec"]["metrics"]))
    assert "annotations" not in after["metadata"]


def test_a_wrong_annotation_is_no_reason_to_fail(world: World) -> None:
    body = scaler()
    body["metadata"]["annotations"] = {"autoscaling.alpha.kubernetes.io/metrics": "{nonsense", "mine": "1"}
    made = world.create(V1, body)
    assert made["metadata"]["annotations"] == {"mine": "1"}
