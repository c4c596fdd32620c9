"""Custom resources in two versions that a webhook turns into each other: what is read, written, watched and refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from phalanx.base.client import Resource
from support.local_cluster import LocalCluster
from support.webhook_endpoint import Endpoint

Json = dict[str, Any]
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


def convert(request: Json) -> Json:
    """v1 says `hostPort: a:1`, v2 says `host: a` and `port: 1`."""
    found = []
    for obj in request["objects"]:
        spec = dict(obj.get("spec") or {})
        if request["desiredAPIVersion"].endswith("/v2"):
            if "hostPort" in spec:
                host, _, port = spec.pop("hostPort").partition(":")
                spec |= {"host": host, "port": port}
        elif "host" in spec:
            spec["hostPort"] = f"{spec.pop('host')}:{spec.pop('port', '')}"
        found.append({**obj, "apiVersion": request["desiredAPIVersion"], "spec": spec})
    return {"result": {"status": "Success"}, "convertedObjects": found}


def text(*names: str, **more: Any) -> Json:
    fields = {name: {"type": "string"} for name in names}
    spec = {"type": "object", "properties": fields | {"size": {"type": "integer"}}, **more}
    return {"openAPIV3Schema": {"type": "object", "properties": {"spec": spec}}}


class Routes:
    """A kind `Route` in the versions v1 and v2, v2 stored."""

    def __init__(self, cluster: LocalCluster, endpoint: Endpoint, number: int) -> None:
        self.cluster, self.endpoint, self.group = cluster, endpoint, f"g{number}.example.com"
        self.path = f"/{self.group}"
        endpoint.answers[self.path] = convert
        client = {"url": f"https://127.0.0.1:{endpoint.port}{self.path}", "caBundle": endpoint.ca}
        column = {"name": "Where", "type": "string", "jsonPath": ".spec.hostPort"}
        self.definition: Json = {
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": f"routes.{self.group}"},
            "spec": {
                "group": self.group,
                "scope": "Namespaced",
                "names": {"plural": "routes", "kind": "Route"},
                "conversion": {
                    "strategy": "Webhook",
                    "webhook": {"clientConfig": client, "conversionReviewVersions": ["v1"]},
                },
                "versions": [
                    {"name": "v2", "served": True, "storage": True, "schema": text("host", "port")},
                    {
                        "name": "v1",
                        "served": True,
                        "storage": False,
                        "schema": text("hostPort", required=["hostPort"]),
                        "additionalPrinterColumns": [column],
                    },
                ],
            },
        }
        made = cluster.ask("POST", DEFINITIONS, self.definition)
        assert made.code == 201 and "warning" not in made.headers, made.body

    def place(self, version: str, name: str = "") -> str:
        found = f"/apis/{self.group}/{version}/namespaces/default/routes"
        return f"{found}/{name}" if name else found

    def body(self, version: str, name: str, **spec: Any) -> Json:
        return {"apiVersion": f"{self.group}/{version}", "kind": "Route", "metadata": {"name": name}, "spec": spec}

    def create(self, version: str, name: str, **spec: Any) -> Any:
        return self.cluster.ask("POST", self.place(version), self.body(version, name, **spec))

    def spec(self, version: str, name: str) -> Json:
        return dict(self.cluster.get(self.place(version, name))["spec"])


@pytest.fixture
def routes(server: LocalCluster, endpoint: Endpoint, request: pytest.FixtureRequest) -> Iterator[Routes]:
    made = Routes(server, endpoint, abs(hash(request.node.name)) % 10**8)
    yield made
    made.endpoint.answers[made.path] = convert
    server.ask("DELETE", f"{DEFINITIONS}/{made.definition['metadata']['name']}")


def test_what_is_written_in_one_version_is_read_in_the_other(routes: Routes) -> None:
    made = routes.create("v1", "a", hostPort="h:1")
    assert made.code == 201 and made.json["spec"] == {"hostPort": "h:1"}
    assert made.json["apiVersion"] == f"{routes.group}/v1"
    assert routes.spec("v2", "a") == {"host": "h", "port": "1"}
    assert routes.spec("v1", "a") == {"hostPort": "h:1"}
    routes.create("v2", "b", host="i", port="2")
    listed = routes.cluster.get(routes.place("v1"))
    assert [item["spec"] for item in listed["items"]] == [{"hostPort": "h:1"}, {"hostPort": "i:2"}]
    assert {item["apiVersion"] for item in listed["items"]} == {f"{routes.group}/v1"}
    table = routes.cluster.ask("GET", routes.place("v1"), accept="application/json;as=Table;g=meta.k8s.io;v=v1")
    assert [row["cells"] for row in table.json["rows"]] == [["a", "h:1"], ["b", "i:2"]]
    table = routes.cluster.ask("GET", routes.place("v2"), accept="application/json;as=Table;g=meta.k8s.io;v=v1")
    assert [column["name"] for column in table.json["columnDefinitions"]] == ["Name", "Age"]


def test_updates_patches_and_apply_go_through_the_clients_version(routes: Routes) -> None:
    made = routes.create("v2", "a", host="h", port="1").json
    patched = routes.cluster.ask("PATCH", routes.place("v1", "a"), {"spec": {"hostPort": "h:2"}}, content_type=MERGE)
    assert patched.json["spec"] == {"hostPort": "h:2"} and routes.spec("v2", "a") == {"host": "h", "port": "2"}
    assert patched.json["metadata"]["uid"] == made["metadata"]["uid"] and patched.json["metadata"]["generation"] == 2
    body = {**patched.json, "spec": {"hostPort": "j:3"}}
    assert routes.cluster.ask("PUT", routes.place("v1", "a"), body).json["spec"] == {"hostPort": "j:3"}
    assert routes.spec("v2", "a") == {"host": "j", "port": "3"}
    for spec in ({"hostPort": "k:4"}, {"hostPort": "k:5"}):
        applied = routes.cluster.ask(
            "PATCH", routes.place("v1", "c"), routes.body("v1", "c", **spec), content_type=APPLY, fieldManager="me"
        )
        assert applied.code in (200, 201) and applied.json["spec"] == spec, applied.body
    assert routes.spec("v2", "c") == {"host": "k", "port": "5"}
    deleted = routes.cluster.ask("DELETE", routes.place("v1"))
    assert sorted(item["spec"]["hostPort"] for item in deleted.json["items"]) == ["j:3", "k:5"]


def test_a_watch_shows_the_version_it_is_about_and_asks_once_for_all(routes: Routes) -> None:
    routes.create("v2", "a", host="h", port="1")
    seen = []
    for _ in range(3):
        answer = routes.cluster.ask("GET", routes.place("v1"), watch="true", timeoutSeconds="1")
        seen.append([json.loads(line)["object"]["spec"] for line in answer.body.splitlines()])
    assert seen == [[{"hostPort": "h:1"}]] * 3
    assert len(routes.endpoint.of(routes.path)) == 1


def test_what_the_clients_version_forbids_is_refused_before_any_webhook_is_asked(routes: Routes) -> None:
    refused = routes.create("v1", "a", size=1)
    assert refused.code == 422 and "spec.hostPort: Required value" in refused.json["message"]
    assert not routes.endpoint.of(routes.path)


def test_expressions_of_the_clients_version_decide_about_a_write(routes: Routes) -> None:
    """Each version has rules of its own, also about the object as it was."""
    v2, v1 = (each["schema"]["openAPIV3Schema"]["properties"]["spec"] for each in routes.definition["spec"]["versions"])
    v1["x-kubernetes-validations"] = [
        {"rule": "self.hostPort.endsWith(':1') || self.hostPort.endsWith(':2')", "message": "port 1 or 2"},
        {"rule": "self.hostPort.split(':')[0] == oldSelf.hostPort.split(':')[0]", "message": "the host stays"},
    ]
    v2["x-kubernetes-validations"] = [{"rule": "self.port != '2'", "message": "not port 2"}]
    name = routes.definition["metadata"]["name"]
    patch = {"spec": {"versions": routes.definition["spec"]["versions"]}}
    assert routes.cluster.ask("PATCH", f"{DEFINITIONS}/{name}", patch, content_type=MERGE).code == 200
    refused = [
        (routes.create("v1", "a", hostPort="h:3"), "port 1 or 2"),
        (routes.create("v2", "a", host="h", port="2"), "not port 2"),
    ]
    assert routes.create("v1", "a", hostPort="h:2").code == 201  # the rule of v2 is not asked
    assert routes.create("v2", "b", host="h", port="3").code == 201
    for path, change, why in (
        (routes.place("v1", "a"), {"hostPort": "g:2"}, "the host stays"),
        (routes.place("v1", "b"), {"hostPort": "h:4"}, "port 1 or 2"),
        (routes.place("v2", "a"), {"host": "g", "port": "2"}, "not port 2"),
        (routes.place("v2", "a"), {"host": "g", "port": "1"}, ""),  # the host may change in v2
    ):
        answer = routes.cluster.ask("PATCH", path, {"spec": change}, content_type=MERGE)
        if why:
            refused.append((answer, why))
        else:
            assert answer.code == 200, answer.json
    for answer, why in refused:
        assert answer.code == 422 and why in answer.json["message"], (why, answer.json)


@pytest.mark.parametrize(
    "answer,why",
    [
        ({"result": {"status": "Failure", "message": "no idea"}}, "no idea"),
        ({"result": {"status": "Success"}, "convertedObjects": []}, "returned 0 objects, expected 1"),
        ({"result": {"status": "Success"}, "convertedObjects": [{"metadata": {}}]}, "returned None, Kind=None"),
        ({"uid": "other"}, "response.uid"),
    ],
)
def test_a_webhook_that_fails_is_reported_and_nothing_is_stored(routes: Routes, answer: Json, why: str) -> None:
    routes.create("v2", "there", host="h", port="1")
    routes.endpoint.answers[routes.path] = lambda request: answer
    for result in (routes.create("v1", "a", hostPort="h:1"), routes.cluster.ask("GET", routes.place("v1", "there"))):
        assert result.code == 500 and "conversion webhook for" in result.json["message"]
        assert why in result.json["message"]
    assert [item["metadata"]["name"] for item in routes.cluster.get(routes.place("v2"))["items"]] == ["there"]


def test_a_webhook_has_no_say_in_names(routes: Routes) -> None:
    def rename(request: Json) -> Json:
        found = convert(request)
        for obj in found["convertedObjects"]:
            obj["metadata"] = {**obj["metadata"], "name": "other"}
        return found

    routes.endpoint.answers[routes.path] = rename
    refused = routes.create("v1", "a", hostPort="h:1")
    assert refused.code == 500 and "it changed metadata.name of a" in refused.json["message"]


def test_another_storage_version_keeps_what_was_stored_before(routes: Routes) -> None:
    routes.create("v2", "old", host="h", port="1")
    path = f"{DEFINITIONS}/{routes.definition['metadata']['name']}"
    current = routes.cluster.get(path)
    for version in current["spec"]["versions"]:
        version["storage"] = version["name"] == "v1"
    changed = routes.cluster.ask("PUT", path, current)
    assert changed.code == 200 and changed.json["status"]["storedVersions"] == ["v2", "v1"]
    routes.create("v2", "new", host="i", port="2")
    assert routes.spec("v2", "old") == {"host": "h", "port": "1"} and routes.spec("v1", "old") == {"hostPort": "h:1"}
    assert routes.spec("v1", "new") == {"hostPort": "i:2"}
    patched = routes.cluster.ask("PATCH", routes.place("v1", "old"), {"spec": {"size": 1}}, content_type=MERGE)
    assert patched.json["spec"] == {"hostPort": "h:1", "size": 1}
    assert routes.spec("v2", "old") == {"host": "h", "port": "1", "size": 1}


def test_a_definition_that_names_no_webhook_is_refused(routes: Routes) -> None:
    body = json.loads(json.dumps(routes.definition))
    body["metadata"]["name"], body["spec"]["group"] = "routes.other.example.com", "other.example.com"
    body["spec"]["conversion"] = {"strategy": "Webhook"}
    refused = routes.cluster.ask("POST", DEFINITIONS, body)
    assert refused.code == 422
    assert "spec.conversion.webhookClientConfig: Required value" in refused.json["message"]


def test_parts_of_the_process_see_a_version_and_need_no_webhook_for_what_is_stored(routes: Routes) -> None:
    """Garbage collection and deletion of namespaces follow every kind: a webhook that is away must not stop them."""
    routes.create("v2", "a", host="h", port="1")
    client = routes.cluster.cluster.server.client("inside")

    def spec(version: str) -> list[Json]:
        kind = Resource(routes.group, version, "routes", "Route")
        values, _ = routes.cluster.call(client.snapshot(kind, "default"))
        return [json.loads(value)["spec"] for value in values]

    assert spec("v1") == [{"hostPort": "h:1"}]
    routes.endpoint.answers[routes.path] = lambda request: {}
    path = f"{DEFINITIONS}/{routes.definition['metadata']['name']}"
    current = routes.cluster.get(path)
    for version in current["spec"]["versions"]:
        version["storage"] = version["name"] == "v1"
    routes.cluster.ask("PUT", path, current)
    assert spec("v1") == [{"host": "h", "port": "1"}], "as it is stored"
    deleted = routes.cluster.ask("DELETE", path)
    assert deleted.code == 200
    name = routes.definition["metadata"]["name"]
    routes.cluster.wait(DEFINITIONS, lambda found: name not in [item["metadata"]["name"] for item in found["items"]])
