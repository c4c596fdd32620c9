"""What the server fills in where an object says nothing, as kube-apiserver 1.37 does (asked of its own defaulting)."""

from __future__ import annotations

from typing import Any

from writing import PODS, World, pod

NETWORKING = "/apis/networking.k8s.io/v1/namespaces/ns"


def spec_of(world: World, path: str, spec: Any) -> Any:
    return world.create(path, {"metadata": {"name": "x"}, "spec": spec})["spec"]


def test_hooks_and_fields_of_pods(world: World) -> None:
    field = {"path": "p", "fieldRef": {"fieldPath": "metadata.name"}}
    volumes = [
        {"name": "d", "downwardAPI": {"items": [field]}},
        {"name": "p", "projected": {"sources": [{"downwardAPI": {"items": [field]}}]}},
    ]
    hook = {"preStop": {"httpGet": {"port": 80}}}
    containers = [{"name": "c", "image": "i", "lifecycle": hook}]
    spec = world.create(PODS, pod("p", containers=containers, volumes=volumes))["spec"]
    assert spec["containers"][0]["lifecycle"]["preStop"]["httpGet"] == {"port": 80, "path": "/", "scheme": "HTTP"}
    named = {"apiVersion": "v1", "fieldPath": "metadata.name"}
    assert spec["volumes"][0]["downwardAPI"]["items"][0]["fieldRef"] == named
    assert spec["volumes"][1]["projected"]["sources"][0]["downwardAPI"]["items"][0]["fieldRef"] == named


def test_a_client_stays_with_its_pod_for_three_hours(world: World) -> None:
    spec = spec_of(world, "/api/v1/namespaces/ns/services", {"ports": [{"port": 80}], "sessionAffinity": "ClientIP"})
    assert spec["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 10800}}


def test_ports_of_policies_are_tcp(world: World) -> None:
    spec = spec_of(world, f"{NETWORKING}/networkpolicies", {"podSelector": {}, "ingress": [{"ports": [{"port": 80}]}]})
    assert spec["ingress"] == [{"ports": [{"port": 80, "protocol": "TCP"}]}]


def test_endpoints_have_conditions(world: World) -> None:
    body = {"metadata": {"name": "x"}, "addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.1"]}]}
    made = world.create("/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices", body)
    assert made["endpoints"] == [{"addresses": ["192.0.2.1"], "conditions": {}}]


def test_a_condition_of_a_failure_policy_is_about_its_being_true(world: World) -> None:
    rules = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
    spec = {"podFailurePolicy": {"rules": rules}, "template": template}
    made = spec_of(world, "/apis/batch/v1/namespaces/ns/jobs", spec)
    assert made["podFailurePolicy"]["rules"][0]["onPodConditions"] == [{"type": "DisruptionTarget", "status": "True"}]


def test_how_an_autoscaler_behaves_is_spelt_out_once_it_is_mentioned(world: World) -> None:
    target = {"kind": "Deployment", "name": "a", "apiVersion": "apps/v1"}
    spec = {"scaleTargetRef": target, "maxReplicas": 3, "behavior": {"scaleUp": {"stabilizationWindowSeconds": 3}}}
    made = spec_of(world, "/apis/autoscaling/v2/namespaces/ns/horizontalpodautoscalers", spec)
    percent = {"type": "Percent", "value": 100, "periodSeconds": 15}
    assert made["behavior"] == {
        "scaleUp": {
            "stabilizationWindowSeconds": 3,
            "selectPolicy": "Max",
            "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}, percent],
        },
        "scaleDown": {"selectPolicy": "Max", "policies": [percent]},
    }
