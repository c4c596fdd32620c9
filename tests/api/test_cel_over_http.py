# ruff: noqa: E501 (manifests on one line)
"""CEL as clients meet it over HTTP: definitions with rules, server-side apply, policies, warnings and the audit log."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.local_cluster import LocalCluster

Json = dict[str, Any]
GROUP = "/apis/admissionregistration.k8s.io/v1"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RULES = "x-kubernetes-validations"
_numbers = itertools.count()


class Things:
    """A custom resource of its own group, whose schema tests change."""

    def __init__(self, server: LocalCluster, namespace: str) -> None:
        self.server, self.group = server, f"g{next(_numbers)}.example.com"
        self.path = f"/apis/{self.group}/v1/namespaces/{namespace}/things"
        self.made = f"{DEFINITIONS}/things.{self.group}"

    def define(self, schema: Json) -> Any:
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
        spec = {
            "group": self.group,
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [version],
        }
        found = self.server.ask("GET", self.made)
        if found.code == 200:
            return self.server.ask("PUT", self.made, {**found.json, "spec": {**found.json["spec"], **spec}})
        return self.server.ask("POST", DEFINITIONS, {"metadata": {"name": f"things.{self.group}"}, "spec": spec})

    def apply(self, body: Json, name: str = "a") -> Any:
        whole = {"apiVersion": f"{self.group}/v1", "kind": "Thing", "metadata": {"name": name}, **body}
        return self.server.ask(
            "PATCH",
            f"{self.path}/{name}",
            whole,
            content_type="application/apply-patch+yaml",
            fieldManager="me",
            force="true",
        )


@pytest.fixture
def things(server: LocalCluster, namespace: str) -> Iterator[Things]:
    made = Things(server, namespace)
    yield made
    server.ask("DELETE", made.made)


def correlated(**field: Any) -> Json:
    """A schema with a field at every place that has an old value: alone, in an object, in a keyed list, in a map."""
    text: Json = {"type": "string", "maxLength": 5, **field}
    inner = {"type": "object", "properties": {"field": text}}
    item = {"type": "object", "required": ["key"], "properties": {"key": {"type": "string"}, "field": text}}
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key"], "maxItems": 5}
    return {
        "type": "object",
        "properties": {
            "field": text,
            "struct": inner,
            "list": {"type": "array", "items": item, **keyed},
            "map": {"type": "object", "maxProperties": 5, "additionalProperties": inner},
        },
    }


def everywhere(text: str) -> Json:
    return {
        "field": text,
        "struct": {"field": text},
        "list": [{"key": "foo", "field": text}, {"key": "bar", "field": text}],
        "map": {"foo": {"field": text}, "bar": {"field": text}},
    }


PLACES = ("field", "struct.field", "list[0].field", "list[1].field", "map[foo].field", "map[bar].field")


def test_transition_rules_hold_for_unchanged_values_too(things: Things) -> None:
    assert things.define(correlated()).code == 201
    assert things.apply(everywhere("foo")).code == 201
    assert things.define(correlated(**{RULES: [{"rule": "self != oldSelf"}]})).code == 200
    refused = things.apply({**everywhere("foo"), "metadata": {"name": "a", "labels": {"x": "y"}}})
    assert refused.code == 422
    fields = [cause["field"] for cause in refused.json["details"]["causes"]]
    assert sorted(fields) == sorted(PLACES)
    assert things.apply(everywhere("bar")).code == 200


def test_rules_about_unchanged_values_let_an_update_pass(things: Things) -> None:
    things.define(correlated())
    assert things.apply(everywhere("notok")).code == 201
    assert things.define(correlated(**{RULES: [{"rule": "self == 'foo'"}]})).code == 200
    made = things.apply({**everywhere("notok"), "metadata": {"name": "a", "labels": {"x": "y"}}})
    assert made.code == 200
    # The last of the warnings; each place has one.
    assert "map[bar].field: Invalid value: \\\"notok\\\": failed rule: self == 'foo'" in made.headers["warning"]
    refused = things.apply({**everywhere("other"), "struct": {"field": "notok"}})
    changed = [place for place in PLACES if place != "struct.field"]
    assert sorted(cause["field"] for cause in refused.json["details"]["causes"]) == sorted(changed)
    assert "struct.field: Invalid value" in refused.headers["warning"]


def test_optional_old_values_are_absent_at_creation(things: Things) -> None:
    rule = {"rule": "!oldSelf.hasValue() || self != oldSelf.value()", "optionalOldSelf": True}
    assert things.define(correlated(**{RULES: [rule]})).code == 201
    assert things.apply(everywhere("foo")).code == 201
    assert things.apply({**everywhere("foo"), "metadata": {"name": "a", "labels": {"x": "y"}}}).code == 422
    assert things.apply(everywhere("new")).code == 200


def test_items_of_lists_without_keys_count_as_changed_with_their_list(things: Things) -> None:
    def schema(**rules: Any) -> Json:
        item = {"type": "string", "maxLength": 9, **rules}
        lists: Json = {"atomic": {"type": "array", "maxItems": 9, "items": item}}
        lists["set"] = {**lists["atomic"], "x-kubernetes-list-type": "set"}
        return {"type": "object", "properties": lists}

    things.define(schema())
    assert things.apply({"atomic": ["bad"], "set": ["bad"]}).code == 201
    things.define(schema(**{RULES: [{"rule": "self != 'bad'"}]}))
    assert (
        things.apply({"atomic": ["bad"], "set": ["bad"], "metadata": {"name": "a", "labels": {"x": "y"}}}).code == 200
    )
    refused = things.apply({"atomic": ["bad", "good"], "set": ["bad", "good"]})
    assert sorted(cause["field"] for cause in refused.json["details"]["causes"]) == ["atomic[0]", "set[0]"]


def test_object_that_exceeds_the_cost_limit_is_refused(things: Things) -> None:
    numbers = {"type": "array", "maxItems": 725, "items": {"type": "integer"}}
    numbers[RULES] = [{"rule": "self.all(x, self.all(y, y == x))"}]
    assert things.define({"type": "object", "properties": {"numbers": numbers}}).code == 201
    assert things.apply({"numbers": [2, 2]}).code == 201
    refused = things.apply({"numbers": [20] * 725}, "b")
    assert refused.code == 422 and "call cost exceeds limit" in refused.json["message"]


def test_policies_by_kubernetes_manifests(server: LocalCluster, namespace: str) -> None:
    """A policy with variables for Deployments of one namespace; other kinds and namespaces are left alone."""
    match = {
        "resourceRules": [
            {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["*"], "resources": ["deployments"]}
        ]
    }
    name = f"{namespace}.example.com"
    policy = {
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": match,
            "variables": [
                {"name": "replicas", "expression": "object.spec.replicas"},
                {"name": "odd", "expression": "variables.replicas % 2 == 1"},
            ],
            "validations": [
                {
                    "expression": "variables.replicas > 1",
                    "messageExpression": "'wants replicas > 1, got ' + object.spec.replicas",
                },
                {"expression": "variables.odd", "message": "an odd number"},
                {"expression": f"namespaceObject.metadata.name == '{namespace}'"},
            ],
        },
    }
    made = server.create(f"{GROUP}/validatingadmissionpolicies", policy)
    [warning] = made["status"]["typeChecking"]["expressionWarnings"]
    assert warning["fieldRef"] == "spec.validations[0].messageExpression"
    assert "found no matching overload for '_+_' applied to '(string, int)'" in warning["warning"]
    selector = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    binding = {
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny", "Warn"], "matchResources": selector},
    }
    server.create(f"{GROUP}/validatingadmissionpolicybindings", binding)
    table = "application/json;as=Table;g=meta.k8s.io;v=v1"
    shown = server.ask("GET", f"{GROUP}/validatingadmissionpolicies/{name}", accept=table).json
    assert [column["name"] for column in shown["columnDefinitions"]] == ["Name", "Validations", "ParamKind", "Age"]
    assert shown["rows"][0]["cells"][:3] == [name, 3, "<unset>"]
    shown = server.ask("GET", f"{GROUP}/validatingadmissionpolicybindings/{name}", accept=table).json
    assert shown["rows"][0]["cells"][:3] == [name, name, "<unset>"]

    def deploy(count: int, where: str = namespace, kind: str = "deployments") -> Any:
        labels = {"app": "x"}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
        spec = {"replicas": count, "selector": {"matchLabels": labels}, "template": template}
        body = {"metadata": {"generateName": "x-"}, "spec": spec}
        return server.ask("POST", f"/apis/apps/v1/namespaces/{where}/{kind}", body)

    try:
        refused = deploy(1)
        assert refused.code == 422 and refused.json["reason"] == "Invalid"
        assert (
            f"ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: failed expression: variables.replicas > 1"
            in refused.json["message"]
        )
        assert "an odd number" in deploy(2).json["message"]
        assert deploy(3).code == 201
        assert deploy(1, kind="replicasets").code == 201
        assert deploy(1, where="default").code == 201
    finally:
        server.delete(f"{GROUP}/validatingadmissionpolicybindings/{name}")
        server.delete(f"{GROUP}/validatingadmissionpolicies/{name}")
    assert deploy(1).code == 201


def test_mutating_policy_by_kubernetes_manifests(server: LocalCluster, namespace: str) -> None:
    match = {
        "resourceRules": [
            {"apiGroups": ["apps"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["deployments"]}
        ]
    }
    match["namespaceSelector"] = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}  # type: ignore[assignment]
    name = f"{namespace}.example.com"
    mutations = [
        {
            "patchType": "ApplyConfiguration",
            "applyConfiguration": {"expression": "Object{spec: Object.spec{replicas: 1337}}"},
        },
        {
            "patchType": "ApplyConfiguration",
            "applyConfiguration": {"expression": "Object{metadata: Object.metadata{annotations: {'by': 'policy'}}}"},
        },
    ]
    spec = {"matchConstraints": match, "reinvocationPolicy": "Never", "mutations": mutations}
    server.create(f"{GROUP}/mutatingadmissionpolicies", {"metadata": {"name": name}, "spec": spec})
    server.create(
        f"{GROUP}/mutatingadmissionpolicybindings", {"metadata": {"name": name}, "spec": {"policyName": name}}
    )
    labels = {"app": "x"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    body = {
        "metadata": {"name": "x"},
        "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
    }
    try:
        made = server.create(f"/apis/apps/v1/namespaces/{namespace}/deployments", body)
    finally:
        server.delete(f"{GROUP}/mutatingadmissionpolicybindings/{name}")
        server.delete(f"{GROUP}/mutatingadmissionpolicies/{name}")
    assert made["spec"]["replicas"] == 1337 and made["metadata"]["annotations"]["by"] == "policy"


def test_audit_annotations_stand_in_the_audit_log(start_cluster: Callable[..., LocalCluster], tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    cluster = start_cluster(run_nodes=False, run_controllers=False, run_scheduler=False, audit_log=log)
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    spec = {
        "matchConstraints": {"resourceRules": [rule]},
        "validations": [{"expression": "has(object.data)", "message": "no data"}],
        "auditAnnotations": [{"key": "name", "valueExpression": "'named ' + object.metadata.name"}],
    }
    cluster.create(f"{GROUP}/validatingadmissionpolicies", {"metadata": {"name": "p"}, "spec": spec})
    actions = {"policyName": "p", "validationActions": ["Audit", "Warn"]}
    cluster.create(f"{GROUP}/validatingadmissionpolicybindings", {"metadata": {"name": "b"}, "spec": actions})
    made = cluster.ask("POST", "/api/v1/namespaces/default/configmaps", {"metadata": {"name": "x"}})
    assert made.code == 201
    assert "Validation failed for ValidatingAdmissionPolicy 'p' with binding 'b': no data" in made.headers["warning"]
    cluster.get("/api/v1/namespaces/default")  # a line is written behind its answer, before the next request
    events = [json.loads(line) for line in log.read_text().splitlines()]
    [event] = [e for e in events if e.get("objectRef", {}).get("resource") == "configmaps" and e["verb"] == "create"]
    assert event["annotations"]["p/name"] == "named x"
    assert '"message":"no data"' in event["annotations"]["validation.policy.admission.k8s.io/validation_failure"]
