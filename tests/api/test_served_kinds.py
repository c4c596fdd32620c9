"""Kinds that other people's programs list, watch and write, whether or not this cluster acts on them."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.base.errors import Forbidden, Invalid
from phalanx.model.builtin import registry
from support.api_world import PODS, World
from support.local_cluster import LocalCluster
from support.manifests import pod
from support.raw_http import TABLE

Json = dict[str, Any]
CERTIFICATE = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
TAINT = {"key": "a/b", "effect": "NoExecute"}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
_WORKERS = {"size": 2, "workerTemplate": TEMPLATE}
# path -> spec of a kind whose definition has metav1.Condition
CONDITIONED: dict[str, Json] = {
    "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ns/jobsets": {},
    "/apis/leaderworkerset.x-k8s.io/v1/namespaces/ns/leaderworkersets": {"leaderWorkerTemplate": _WORKERS},
    "/apis/disaggregatedset.x-k8s.io/v1/namespaces/ns/disaggregatedsets": {
        "roles": [{"name": name, "spec": {"leaderWorkerTemplate": _WORKERS}} for name in ("a", "b")]
    },
    "/apis/disaggregatedset.x-k8s.io/v1/namespaces/ns/disaggregatedsetrolescalers": {"replicas": 1},
}
RULES = {"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
MUTATION = {
    "patchType": "JSONPatch",
    "jsonPatch": {"expression": "[JSONPatch{op: 'test', path: '/kind', value: 'Pod'}]"},
}
# path -> the rest of a small object
NEW: dict[str, Json] = {
    "/api/v1/namespaces/ns/replicationcontrollers": {"spec": {"template": TEMPLATE}},
    "/api/v1/namespaces/ns/endpoints": {"subsets": [{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}]},
    "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices": {
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.0.0.1"]}],
        "ports": [{"port": 80}],
    },
    "/apis/storage.k8s.io/v1/volumeattachments": {
        "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}}
    },
    "/apis/storage.k8s.io/v1/volumeattributesclasses": {"driverName": "d"},
    "/apis/resource.k8s.io/v1/devicetaintrules": {"spec": {"taint": TAINT}},
    "/apis/node.k8s.io/v1/runtimeclasses": {"handler": "h"},
    "/apis/networking.k8s.io/v1/namespaces/ns/ingresses": {"spec": {"defaultBackend": {"service": {"name": "s"}}}},
    "/apis/networking.k8s.io/v1/ingressclasses": {"spec": {"controller": "example.com/c"}},
    "/apis/networking.k8s.io/v1/namespaces/ns/networkpolicies": {"spec": {}},
    "/apis/networking.k8s.io/v1/ipaddresses": {
        "metadata": {"name": "10.0.0.9"},
        "spec": {"parentRef": {"resource": "services", "name": "s", "namespace": "ns"}},
    },
    "/apis/networking.k8s.io/v1/servicecidrs": {"spec": {"cidrs": ["10.7.0.0/16"]}},
    "/apis/autoscaling/v2/namespaces/ns/horizontalpodautoscalers": {
        "spec": {"maxReplicas": 3, "scaleTargetRef": {"kind": "Deployment", "name": "d", "apiVersion": "apps/v1"}}
    },
    CERTIFICATE: {"spec": {"request": "YQ==", "signerName": "a.b/c", "usages": ["client auth"]}},
    "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas": {"spec": {"priorityLevelConfiguration": {"name": "x"}}},
    "/apis/flowcontrol.apiserver.k8s.io/v1/prioritylevelconfigurations": {"spec": {"type": "Exempt"}},
    f"{ADMISSION}/validatingadmissionpolicies": {
        "spec": {"matchConstraints": {"resourceRules": [RULES]}, "validations": [{"expression": "false"}]}
    },
    f"{ADMISSION}/validatingadmissionpolicybindings": {"spec": {"policyName": "p", "validationActions": ["Deny"]}},
    f"{ADMISSION}/mutatingadmissionpolicies": {
        "spec": {
            "matchConstraints": {"resourceRules": [RULES]},
            "mutations": [MUTATION],
            "reinvocationPolicy": "Never",
        }
    },
    f"{ADMISSION}/mutatingadmissionpolicybindings": {"spec": {"policyName": "p"}},
    "/apis/certificates.k8s.io/v1/namespaces/ns/podcertificaterequests": {
        "spec": {
            "signerName": "a.b/c",
            "stubPKCS10Request": "YQ==",
            **{f"{part}{end}": "x" for part in ("pod", "serviceAccount", "node") for end in ("Name", "UID")},
        }
    },
    "/apis/certificates.k8s.io/v1/clustertrustbundles": {"spec": {"trustBundle": "certificates"}},
    "/apis/apiregistration.k8s.io/v1/apiservices": {
        "metadata": {"name": "v1.metrics.example.com"},
        "spec": {
            "group": "metrics.example.com",
            "version": "v1",
            "groupPriorityMinimum": 100,
            "versionPriority": 10,
            "service": {"name": "s", "namespace": "default"},
        },
    },
    "/apis/storagemigration.k8s.io/v1/storageversionmigrations": {"spec": {"resource": {"resource": "pods"}}},
}


@pytest.mark.parametrize("path", NEW, ids=[path.rpartition("/")[2] for path in NEW])
def test_a_small_object_is_made_changed_and_shown(server: LocalCluster, namespace: str, path: str) -> None:
    path, body = path.replace("/ns/", f"/{namespace}/"), NEW[path]
    name = body.get("metadata", {}).get("name", f"{namespace}-x")
    made = server.ask("POST", path, {**body, "metadata": {"name": name}})
    assert made.code == 201, made.body
    patched = server.ask(
        "PATCH", f"{path}/{name}", {"metadata": {"labels": {"x": "y"}}}, content_type="application/merge-patch+json"
    )
    assert patched.code == 200, patched.body
    table = server.ask(
        "GET", path, accept="application/json;as=Table;g=meta.k8s.io;v=v1", fieldSelector=f"metadata.name={name}"
    )
    rows = table.json["rows"]
    assert len(rows[0]["cells"]) == len(table.json["columnDefinitions"]) and name in rows[0]["cells"]
    assert server.ask("DELETE", f"{path}/{name}").code == 200


def test_admission_policy_has_defaults(server: LocalCluster) -> None:
    path = f"{ADMISSION}/validatingadmissionpolicies"
    made = server.ask("POST", path, {"metadata": {"name": "no-pods"}, **NEW[path]})
    assert made.json["spec"]["matchConstraints"]["matchPolicy"] == "Equivalent"
    assert made.json["spec"]["matchConstraints"]["resourceRules"][0]["scope"] == "*"
    refused = server.ask("POST", path, {"metadata": {"name": "empty"}, "spec": {}})
    assert refused.code == 422 and "spec.matchConstraints" in refused.json["message"]


@pytest.mark.parametrize("port", [{"endPort": 90}, {"port": "web", "endPort": 90}, {"port": 91, "endPort": 90}])
def test_the_last_port_of_a_network_policy_needs_a_first_one_before_it(server: LocalCluster, port: Json) -> None:
    path = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
    spec = {"podSelector": {}, "egress": [{"ports": [port]}]}
    refused = server.ask("POST", path, {"metadata": {"name": "n"}, "spec": spec})
    assert refused.code == 422 and "spec.egress[0].ports[0]" in refused.json["message"]
    fine = {**spec, "egress": [{"ports": [{"port": 80, "endPort": 90}]}]}
    assert server.ask("POST", path, {"metadata": {"name": "n"}, "spec": fine}, dryRun="All").code == 201


def test_trust_bundles_are_found_by_their_signer(server: LocalCluster) -> None:
    """kube-controller-manager follows its own only."""
    path = "/apis/certificates.k8s.io/v1/clustertrustbundles"
    for name, signer in (("example.com:mine:a", "example.com/mine"), ("plain", "")):
        spec = {"trustBundle": "certificates"} | ({"signerName": signer} if signer else {})
        server.create(path, {"metadata": {"name": name}, "spec": spec})
    found = server.list(path, fieldSelector="spec.signerName=example.com/mine")
    assert [item["metadata"]["name"] for item in found] == ["example.com:mine:a"]


def test_everything_that_is_served_can_be_listed(server: LocalCluster) -> None:
    for kind in registry().all():
        if "list" in kind.verbs:
            prefix = f"/apis/{kind.group}" if kind.group else "/api"
            reply = server.ask("GET", f"{prefix}/{kind.storage_version}/{kind.plural}", limit=1)
            assert (reply.code, reply.json["kind"]) == (200, f"{kind.kind}List"), kind.key


def test_the_user_of_a_certificate_request_is_the_caller_and_approval_is_separate(world: World) -> None:
    body = {"metadata": {"name": "c"}, **NEW[CERTIFICATE]}
    body["spec"] = {**body["spec"], "username": "somebody-else"}
    made = world.create(CERTIFICATE, body)
    assert made["spec"]["username"] != "somebody-else"
    decision = {"type": "Approved", "status": "True", "reason": "ok"}
    made["status"] = {"conditions": [decision], "certificate": "bm8="}
    approved = world.update(f"{CERTIFICATE}/c/approval", made)
    assert approved["status"] == {"conditions": [decision]}
    with pytest.raises(Invalid, match="immutable"):
        world.patch(f"{CERTIFICATE}/c", {"spec": {"signerName": "x.y/z"}})


def test_the_runtime_class_of_a_pod_decides_what_it_costs_and_where_it_runs(world: World) -> None:
    scheduling = {"nodeSelector": {"vm": "yes"}, "tolerations": [{"key": "vm", "operator": "Exists"}]}
    runtime = {"handler": "vm", "overhead": {"podFixed": {"cpu": "250m"}}, "scheduling": scheduling}
    world.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "vm"}, **runtime})
    spec = world.create(PODS, pod("a", runtimeClassName="vm"))["spec"]
    assert spec["overhead"] == {"cpu": "250m"} and spec["nodeSelector"] == {"vm": "yes"}
    assert {"key": "vm", "operator": "Exists"} in spec["tolerations"]
    with pytest.raises(Forbidden, match='RuntimeClass "none" not found'):
        world.create(PODS, pod("b", runtimeClassName="none"))
    with pytest.raises(Forbidden, match="nodeSelector"):
        world.create(PODS, pod("c", runtimeClassName="vm", nodeSelector={"vm": "no"}))


@pytest.mark.parametrize("path", CONDITIONED)
def test_a_condition_lacks_no_field(world: World, path: str) -> None:
    """Their definitions have metav1.Condition, with its bounds."""
    world.create(path, {"metadata": {"name": "o"}, "spec": CONDITIONED[path]})
    good = {
        "type": "Ready",
        "status": "True",
        "reason": "R",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    bad = [{**good, "status": "yes"}, {**good, "reason": ""}, {**good, "reason": "no word"}, {**good, "type": "a b"}]
    bad += [{name: value for name, value in good.items() if name != lost} for lost in ("status", "lastTransitionTime")]
    for condition in bad:
        with pytest.raises(Invalid, match=r"status\.conditions\[0\]"):
            world.patch(f"{path}/o/status", {"status": {"conditions": [condition]}})
    assert world.patch(f"{path}/o/status", {"status": {"conditions": [good]}})["status"]["conditions"] == [good]


def test_a_role_scaler_prints_its_replicas(server: LocalCluster, namespace: str) -> None:
    path = f"/apis/disaggregatedset.x-k8s.io/v1/namespaces/{namespace}/disaggregatedsetrolescalers"
    assert server.ask("POST", path, {"metadata": {"name": "s"}, "spec": {"replicas": 3}}).code == 201
    table = server.ask("GET", path, accept=TABLE).json
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Desired", "Current", "Age"]
    assert table["rows"][0]["cells"][:2] == ["s", 3]


@pytest.mark.parametrize("kind", ["deployments", "replicasets", "statefulsets", "daemonsets"])
def test_counts_in_a_status_are_not_negative(world: World, kind: str) -> None:
    path = f"/apis/apps/v1/namespaces/ns/{kind}"
    world.create(
        path, {"metadata": {"name": "o"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": TEMPLATE}}
    )
    counts = {"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0}
    base = counts if kind == "daemonsets" else {"replicas": 0}
    for name in {*base, "observedGeneration"}:
        with pytest.raises(Invalid, match=f"status.{name}: Invalid value: -1: must be greater than or equal to 0"):
            world.patch(f"{path}/o/status", {"status": {**base, name: -1}})
    world.patch(f"{path}/o/status", {"status": base})
