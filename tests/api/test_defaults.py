"""What the server fills in where an object says nothing, as kube-apiserver 1.37 does (asked of its own defaulting)."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.base.errors import Invalid
from support.api_world import PODS, World
from support.local_cluster import LocalCluster
from support.manifests import pod

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


def test_a_job_says_nothing_of_its_own_about_how_it_finds_its_pods(server: LocalCluster, namespace: str) -> None:
    path = f"/apis/batch/v1/namespaces/{namespace}/jobs"

    def job(name: str, labels: dict[str, str], **more: Any) -> dict[str, Any]:
        pod = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}
        spec = {"template": {"metadata": {"labels": labels}, "spec": pod}, **more}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}

    refused = server.ask("POST", path, job("a", {"a": "b"}, selector={"matchLabels": {"a": "b"}}))
    assert refused.code == 422 and "spec.selector: Invalid value" in refused.json["message"]
    assert "`selector` not auto-generated" in refused.json["message"]
    refused = server.ask("POST", path, job("a", {"job-name": "other"}))
    assert "spec.template.metadata.labels[job-name]: Invalid value" in refused.json["message"]
    assert "must be 'a'" in refused.json["message"]
    made = server.create(path, job("a", {"x": "y"}))
    uid = made["metadata"]["uid"]
    own = {"controller-uid": uid, "job-name": "a"}
    own |= {f"batch.kubernetes.io/{key}": value for key, value in own.items()}
    assert made["metadata"]["labels"] == made["spec"]["template"]["metadata"]["labels"] == {"x": "y"} | own
    alike = job("b", {"x": "y"})
    alike["metadata"]["labels"] = {"x": "y"}  # its own labels, which happen to be the same
    assert server.create(path, alike)["metadata"]["labels"] == {"x": "y"}


SETS = "/apis/apps/v1/namespaces/ns/statefulsets"
DAEMONS = "/apis/apps/v1/namespaces/ns/daemonsets"


def set_spec(**more: Any) -> dict[str, Any]:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    return {"selector": {"matchLabels": {"a": "b"}}, "template": template, **more}


def test_a_stateful_set_rolls_one_pod_at_a_time_unless_only_the_type_is_named(world: World) -> None:
    rolling = {"type": "RollingUpdate", "rollingUpdate": {"partition": 0, "maxUnavailable": 1}}
    assert spec_of(world, SETS, set_spec())["updateStrategy"] == rolling
    named = {"metadata": {"name": "y"}, "spec": set_spec(updateStrategy={"type": "RollingUpdate"})}
    assert world.create(SETS, named)["spec"]["updateStrategy"] == {"type": "RollingUpdate"}


def test_templates_of_claims_are_judged_like_claims_and_the_set_names_hosts(world: World) -> None:
    claim = {"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOncePod", "ReadOnlyMany", "All"]}}
    claim["spec"] |= {"resources": {"requests": {"storage": "0"}}, "volumeMode": "Tape"}
    with pytest.raises(Invalid) as refused:
        spec_of(world, SETS, set_spec(volumeClaimTemplates=[claim]))
    words = str(refused.value)
    for expected in (
        'spec.volumeClaimTemplates[0].spec.accessModes: Unsupported value: "All"',
        "spec.volumeClaimTemplates[0].spec.accessModes: Forbidden: may not use ReadWriteOncePod with other",
        'spec.volumeClaimTemplates[0].spec.resources[storage]: Invalid value: "0": must be greater than zero',
        'spec.volumeClaimTemplates[0].spec.volumeMode: Unsupported value: "Tape": supported values: "Block", "Filesy',
    ):
        assert expected in words
    claim["spec"] = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    spec = set_spec(volumeClaimTemplates=[claim], serviceName="s")
    spec["template"]["spec"]["hostname"] = "Not A Host"  # the set's pods get another
    made = world.create(SETS, {"metadata": {"name": "x"}, "spec": spec})
    with pytest.raises(Invalid, match="spec.volumeClaimTemplates: Invalid value.*field is immutable"):
        world.update(f"{SETS}/x", {**made, "spec": {**made["spec"], "volumeClaimTemplates": []}})


def test_a_daemon_set_counts_changes_of_its_template(world: World) -> None:
    key = "deprecated.daemonset.template.generation"
    made = world.create(DAEMONS, {"metadata": {"name": "x"}, "spec": set_spec()})
    assert made["metadata"]["annotations"] == {key: "1"}
    made["spec"]["minReadySeconds"] = 3
    made["metadata"]["annotations"] = {"mine": "yes", key: "7"}  # not for others to say
    made = world.update(f"{DAEMONS}/x", made)
    assert made["metadata"]["annotations"] == {"mine": "yes", key: "1"} and made["metadata"]["generation"] == 2
    made["spec"]["template"]["spec"]["containers"][0]["image"] = "other"
    made["metadata"].pop("annotations")
    assert world.update(f"{DAEMONS}/x", made)["metadata"]["annotations"] == {key: "2"}


def test_device_taints_have_a_time(world: World) -> None:
    resources = "/apis/resource.k8s.io/v1"
    taint = {"key": "broken", "effect": "NoSchedule"}
    body = {"metadata": {"name": "r"}, "spec": {"deviceSelector": {"driver": "gpu.example.com"}, "taint": taint}}
    rule = world.create(f"{resources}/devicetaintrules", body)
    assert rule["spec"]["taint"]["timeAdded"] == rule["metadata"]["creationTimestamp"]
    rule["spec"]["taint"] |= {"value": "x", "timeAdded": "2020-01-01T00:00:00Z"}
    rule = world.update(f"{resources}/devicetaintrules/r", rule)
    assert rule["spec"]["taint"]["timeAdded"] == "2020-01-01T00:00:00Z"
    rule["spec"]["taint"]["effect"] = "NoExecute"  # counts as added now
    rule = world.update(f"{resources}/devicetaintrules/r", rule)
    assert rule["spec"]["taint"]["timeAdded"] >= rule["metadata"]["creationTimestamp"]
    pool = {"name": "p", "resourceSliceCount": 1}
    spec = {"driver": "gpu.example.com", "nodeName": "n", "pool": pool, "devices": [{"name": "d", "taints": [taint]}]}
    made = world.create(f"{resources}/resourceslices", {"metadata": {"name": "s"}, "spec": spec})
    assert made["spec"]["devices"][0]["taints"][0]["timeAdded"] == made["metadata"]["creationTimestamp"]
