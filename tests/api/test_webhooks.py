"""Admission webhooks against a real HTTPS endpoint: what they are called for, what they may do, and how they fail."""

from __future__ import annotations

import base64
import datetime
import itertools
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from phalanx.local.api.tls import load_identity
from support.local_cluster import LocalCluster
from support.webhook_endpoint import Answer, Endpoint

Json = dict[str, Any]
BASE = "/apis/admissionregistration.k8s.io/v1"
_numbers = itertools.count()


def patch(*operations: Json) -> Json:
    text = base64.b64encode(json.dumps(operations).encode()).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": text}


def label(key: str, value: str) -> Answer:
    """Adds a label, whether there are any or not."""

    def answer(request: Json) -> Json:
        labels = (request["object"]["metadata"].get("labels") or {}) | {key: value}
        return patch({"op": "add", "path": "/metadata/labels", "value": labels})

    return answer


class Hooks:
    """Configurations for one namespace, removed after the test."""

    def __init__(self, cluster: LocalCluster, endpoint: Endpoint, namespace: str) -> None:
        self.cluster, self.endpoint, self.namespace = cluster, endpoint, namespace
        self.made: list[str] = []

    def add(self, answer: Answer, kind: str = "mutating", name: str = "", **more: Any) -> str:
        """The path it is called at."""
        number = next(_numbers)
        path = f"/{number}"
        self.endpoint.answers[path] = answer
        client = {"url": f"https://127.0.0.1:{self.endpoint.port}{path}", "caBundle": self.endpoint.ca}
        rule = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
        body = {
            "name": "hook.example.com",
            "clientConfig": client,
            "rules": [rule],
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 5,
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": self.namespace}},
        } | more
        place = f"{BASE}/{kind}webhookconfigurations"
        name = name or f"hooks-{number:03}"
        self.cluster.create(place, {"metadata": {"name": name}, "webhooks": [body]})
        self.made.append(f"{place}/{name}")
        return path

    def create(self, name: str, **options: Any) -> Any:
        path = f"/api/v1/namespaces/{self.namespace}/configmaps"
        return self.cluster.ask("POST", path, {"metadata": {"name": name}, "data": {"a": "b"}}, **options)


@pytest.fixture
def hooks(server: LocalCluster, endpoint: Endpoint, namespace: str) -> Iterator[Hooks]:
    made = Hooks(server, endpoint, namespace)
    yield made
    for path in made.made:
        server.ask("DELETE", path)


def on(
    *operations: str, resources: list[str] | None = None, groups: list[str] | None = None, **more: Any
) -> list[Json]:
    rule = {"apiGroups": groups or [""], "apiVersions": ["*"], "resources": resources or ["configmaps"]}
    return [{**rule, "operations": list(operations), **more}]


def test_a_mutating_webhook_changes_what_is_stored(hooks: Hooks) -> None:
    path = hooks.add(label("by", "hook"))
    made = hooks.create("a")
    assert made.code == 201 and made.json["metadata"]["labels"] == {"by": "hook"}
    (asked,) = hooks.endpoint.of(path)
    assert (asked["operation"], asked["name"], asked["namespace"]) == ("CREATE", "a", hooks.namespace)
    assert asked["kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
    assert asked["resource"] == {"group": "", "version": "v1", "resource": "configmaps"}
    assert asked["userInfo"]["username"] == "phalanx:admin" and asked["oldObject"] is None
    assert asked["object"]["data"] == {"a": "b"} and asked["dryRun"] is False


def test_a_patch_cannot_make_an_object_another_one(hooks: Hooks) -> None:
    hooks.add(lambda _: patch({"op": "replace", "path": "/metadata/name", "value": "stolen"}))
    assert hooks.create("mine").json["metadata"]["name"] == "mine"


def test_a_refusal_carries_the_words_and_code_of_the_webhook(hooks: Hooks) -> None:
    status = {"code": 403, "reason": "Forbidden", "message": "not on Sundays"}
    hooks.add(lambda _: {"allowed": False, "status": status}, "validating")
    refused = hooks.create("a")
    assert refused.code == 403 and refused.json["reason"] == "Forbidden"
    assert refused.json["message"] == 'admission webhook "hook.example.com" denied the request: not on Sundays'
    gone = hooks.cluster.ask("GET", f"/api/v1/namespaces/{hooks.namespace}/configmaps/a")
    assert gone.code == 404


def test_a_refusal_without_words(hooks: Hooks) -> None:
    hooks.add(lambda _: {"allowed": False})
    refused = hooks.create("a")
    assert refused.code == 400
    assert refused.json["message"] == 'admission webhook "hook.example.com" denied the request without explanation'


def test_warnings_reach_the_client(hooks: Hooks) -> None:
    hooks.add(lambda _: {"allowed": True, "warnings": ["old fashioned"]}, "validating")
    assert hooks.create("a").headers["warning"] == '299 - "old fashioned"'


def test_updates_and_deletions_show_the_old_object(hooks: Hooks) -> None:
    hooks.create("a")
    rules = on("UPDATE", "DELETE")
    path = hooks.add(lambda request: {"allowed": request["operation"] != "DELETE"}, "validating", rules=rules)
    where = f"/api/v1/namespaces/{hooks.namespace}/configmaps"
    hooks.cluster.patch(f"{where}/a", {"data": {"a": "c"}})
    assert hooks.cluster.ask("DELETE", f"{where}/a").code == 400
    assert hooks.cluster.ask("DELETE", where).code == 400
    assert hooks.cluster.get(f"{where}/a")["data"] == {"a": "c"}
    update, delete, _ = hooks.endpoint.of(path)
    assert (update["oldObject"]["data"], update["object"]["data"]) == ({"a": "b"}, {"a": "c"})
    assert delete["object"] is None and delete["oldObject"]["metadata"]["name"] == "a"


def test_status_is_a_subresource_of_its_own(hooks: Hooks) -> None:
    pods = f"/api/v1/namespaces/{hooks.namespace}/pods"
    whole = hooks.add(lambda _: {"allowed": True}, "validating", rules=on("UPDATE", resources=["pods"]))
    status = hooks.add(lambda _: {"allowed": True}, "validating", rules=on("UPDATE", resources=["pods/status"]))
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    hooks.cluster.create(pods, pod)
    hooks.cluster.patch(f"{pods}/p/status", {"status": {"message": "m"}})
    assert not hooks.endpoint.of(whole)
    (asked,) = hooks.endpoint.of(status)
    assert asked["subResource"] == "status" and asked["object"]["status"]["message"] == "m"


def test_scope_and_selectors_choose(hooks: Hooks) -> None:
    cluster_wide = hooks.add(lambda _: {"allowed": True}, rules=on("CREATE", resources=["*"], scope="Cluster"))
    labelled = hooks.add(lambda _: {"allowed": True}, objectSelector={"matchLabels": {"seen": "yes"}})
    elsewhere = hooks.add(lambda _: {"allowed": False}, namespaceSelector={"matchLabels": {"x": "y"}})
    assert hooks.create("a").code == 201
    assert not hooks.endpoint.of(cluster_wide) + hooks.endpoint.of(labelled) + hooks.endpoint.of(elsewhere)
    path = f"/api/v1/namespaces/{hooks.namespace}/configmaps"
    hooks.cluster.create(path, {"metadata": {"name": "b", "labels": {"seen": "yes"}}})
    assert len(hooks.endpoint.of(labelled)) == 1


def test_a_rule_for_one_version_hears_of_all_unless_it_is_exact(hooks: Hooks) -> None:
    group, kind = ["scheduling.k8s.io"], ["podgroups"]
    rules = [{"apiGroups": group, "apiVersions": ["v1alpha3"], "resources": kind, "operations": ["CREATE"]}]
    equivalent = hooks.add(lambda _: {"allowed": True}, rules=rules)
    exact = hooks.add(lambda _: {"allowed": True}, rules=rules, matchPolicy="Exact")
    path = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{hooks.namespace}/podgroups"
    hooks.cluster.create(path, {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}})
    (asked,) = hooks.endpoint.of(equivalent)
    assert asked["kind"]["version"] == "v1alpha3" and asked["requestKind"]["version"] == "v1beta1"
    assert asked["object"]["apiVersion"] == "scheduling.k8s.io/v1alpha3"
    assert not hooks.endpoint.of(exact)


def test_a_webhook_is_called_again_when_others_changed_the_object_after_it(hooks: Hooks) -> None:
    first = hooks.add(label("first", "1"), reinvocationPolicy="IfNeeded", name="a-first")
    never = hooks.add(label("never", "1"), name="b-never")
    last = hooks.add(label("last", "1"), reinvocationPolicy="IfNeeded", name="c-last")
    assert hooks.create("a").json["metadata"]["labels"] == {"first": "1", "never": "1", "last": "1"}
    assert [len(hooks.endpoint.of(path)) for path in (first, never, last)] == [2, 1, 1]


def test_dry_runs_are_said_to_be_dry(hooks: Hooks) -> None:
    path = hooks.add(label("by", "hook"), sideEffects="NoneOnDryRun")
    made = hooks.create("a", dryRun="All")
    assert made.code == 201 and made.json["metadata"]["labels"] == {"by": "hook"}
    assert hooks.endpoint.of(path)[0]["dryRun"] is True


@pytest.mark.parametrize(("policy", "code"), [("Fail", 500), ("Ignore", 201)])
def test_a_webhook_that_cannot_be_reached(hooks: Hooks, policy: str, code: int) -> None:
    client = {"url": "https://127.0.0.1:1/x", "caBundle": hooks.endpoint.ca}
    hooks.add(lambda _: {}, clientConfig=client, failurePolicy=policy)
    reply = hooks.create("a")
    assert reply.code == code
    if code == 500:
        assert reply.json["message"].startswith(
            'Internal error occurred: failed calling webhook "hook.example.com": failed to call webhook: Post '
        )


@pytest.mark.parametrize("slashes", ["/", "//"])
def test_a_webhook_as_envtest_writes_it_is_called(hooks: Hooks, slashes: str) -> None:
    """The bundle is the server's own certificate, and the path may begin with two slashes."""
    endpoint = hooks.endpoint
    name = f"leaf{len(slashes)}"
    endpoint.answers[f"/{name}/x"] = label("called", name)
    url = f"https://127.0.0.1:{endpoint.port}{slashes}{name}{slashes}x"
    hooks.add(label("never", "x"), clientConfig={"url": url, "caBundle": endpoint.leaf})
    assert hooks.create(name).json["metadata"]["labels"] == {"called": name}


def test_a_certificate_of_another_authority_is_not_trusted(hooks: Hooks) -> None:
    other = load_identity(None, (), datetime.datetime.now(datetime.UTC))
    bundle = base64.b64encode(other.ca).decode()
    client = {"url": f"https://127.0.0.1:{hooks.endpoint.port}/x", "caBundle": bundle}
    hooks.add(lambda _: {}, clientConfig=client)
    assert "CERTIFICATE_VERIFY_FAILED" in hooks.create("a").json["message"]


def test_one_slow_webhook_holds_up_no_other_request(hooks: Hooks) -> None:
    release, begun = threading.Event(), threading.Event()

    def slow(_: Json) -> Json:
        begun.set()
        release.wait(20)
        return {"allowed": True}

    hooks.add(slow, timeoutSeconds=20)
    replies: list[int] = []
    waiting = [threading.Thread(target=lambda n=n: replies.append(hooks.create(f"slow-{n}").code)) for n in range(4)]
    for thread in waiting:
        thread.start()
    assert begun.wait(10)
    assert hooks.cluster.create("/api/v1/namespaces/default/configmaps", {"metadata": {"generateName": "quick-"}})
    assert replies == []
    release.set()
    for thread in waiting:
        thread.join(20)
    assert replies == [201] * 4


def test_a_webhook_that_takes_too_long_has_failed(hooks: Hooks) -> None:
    release = threading.Event()
    hooks.add(lambda _: {"allowed": release.wait(20)}, timeoutSeconds=1)
    try:
        assert "timed out" in (said := hooks.create("a").json["message"]) or "deadline" in said
    finally:
        release.set()


def test_no_user_can_lock_itself_out(hooks: Hooks) -> None:
    everything = on("*", resources=["*/*"], groups=["*"])
    hooks.add(lambda _: {"allowed": False}, "validating", rules=everything)
    assert hooks.create("a").code == 400
    (path,) = hooks.made
    hooks.cluster.patch(path, {"metadata": {"labels": {"a": "b"}}})
    hooks.cluster.delete(path)
    assert hooks.create("a").code == 201


def test_a_service_says_by_annotation_where_it_listens(hooks: Hooks) -> None:
    hooks.cluster.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "tools"}})
    client = {"service": {"namespace": "tools", "name": "hooks", "path": "/by-service"}, "caBundle": hooks.endpoint.ca}
    hooks.endpoint.answers["/by-service"] = label("by", "service")
    hooks.add(lambda _: {}, clientConfig=client)
    assert 'service "hooks" not found' in hooks.create("a").json["message"]
    services = "/api/v1/namespaces/tools/services"
    hooks.cluster.create(services, {"metadata": {"name": "hooks"}, "spec": {"ports": [{"port": 443}]}})
    assert "simulation.phalanx.dev/endpoint=127.0.0.1:PORT" in hooks.create("a").json["message"]
    for wrong in ("10.0.0.1:443", "nonsense"):
        change = {"metadata": {"annotations": {"simulation.phalanx.dev/endpoint": wrong}}}
        hooks.cluster.patch(f"{services}/hooks", change)
        assert "must be a loopback address" in hooks.create("a").json["message"]
    change = {"metadata": {"annotations": {"simulation.phalanx.dev/endpoint": f"127.0.0.1:{hooks.endpoint.port}"}}}
    hooks.cluster.patch(f"{services}/hooks", change)
    assert hooks.create("a").json["metadata"]["labels"] == {"by": "service"}


def test_a_configuration_that_could_not_work_is_refused(server: LocalCluster) -> None:
    body = {"metadata": {"name": "bad"}, "webhooks": [{"name": "x", "clientConfig": {"url": "http://x"}}]}
    refused = server.ask("POST", f"{BASE}/validatingwebhookconfigurations", body)
    assert refused.code == 422
    fields = {cause["field"] for cause in refused.json["details"]["causes"]}
    assert fields == {
        "webhooks[0].name",
        "webhooks[0].clientConfig.url",
        "webhooks[0].sideEffects",
        "webhooks[0].admissionReviewVersions",
    }


def pod_named(name: str) -> Json:
    return {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def test_subresources_are_asked_about_in_their_own_kind(hooks: Hooks) -> None:
    """Scale, Binding, Eviction and TokenRequest: what is asked for there is an object of another kind."""
    base = f"/api/v1/namespaces/{hooks.namespace}"
    hooks.cluster.create(f"{base}/pods", pod_named("p"))
    hooks.cluster.create(f"{base}/serviceaccounts", {"metadata": {"name": "robot"}})
    every = ["pods/eviction", "pods/binding", "serviceaccounts/token"]
    path = hooks.add(lambda _: {"allowed": False}, "validating", rules=on("CREATE", resources=every))
    asked_for = {
        f"{base}/pods/p/binding": {"target": {"kind": "Node", "name": "n"}},
        f"{base}/pods/p/eviction": {},
        f"{base}/serviceaccounts/robot/token": {"spec": {"expirationSeconds": 900}},
    }
    for where, body in asked_for.items():
        refused = hooks.cluster.ask("POST", where, body)
        assert refused.code == 400 and "denied the request" in refused.json["message"], where
    assert not hooks.cluster.get(f"{base}/pods/p")["spec"].get("nodeName")
    asked = hooks.endpoint.of(path)
    assert [request["kind"]["kind"] for request in asked] == ["Binding", "Eviction", "TokenRequest"]
    assert [request["subResource"] for request in asked] == ["binding", "eviction", "token"]
    assert asked[0]["resource"] == {"group": "", "version": "v1", "resource": "pods"}
    assert asked[0]["object"]["target"]["name"] == "n" and asked[0]["name"] == "p"
    assert asked[2]["object"]["spec"]["expirationSeconds"] == 900


def test_a_webhook_for_connect_refuses_before_the_server_does(hooks: Hooks) -> None:
    refusal = {"allowed": False, "status": {"message": "not into this pod", "code": 403}}
    path = hooks.add(lambda _: refusal, "validating", rules=on("CONNECT", resources=["pods/exec"]))
    door = f"/api/v1/namespaces/{hooks.namespace}/pods/p/exec?command=ls&command=-l&stdin=true&container=c"
    reply = hooks.cluster.ask("POST", door)
    assert reply.code == 403 and reply.json["message"].endswith("denied the request: not into this pod")
    (asked,) = hooks.endpoint.of(path)
    assert (asked["operation"], asked["name"], asked["subResource"]) == ("CONNECT", "p", "exec")
    assert asked["kind"] == {"group": "", "version": "v1", "kind": "PodExecOptions"}
    assert asked["resource"]["resource"] == "pods" and asked["options"] is None
    assert asked["object"] == {
        "kind": "PodExecOptions", "apiVersion": "v1", "command": ["ls", "-l"], "stdin": True, "container": "c",
    }  # fmt: skip
    assert hooks.cluster.ask("POST", door.replace("/exec", "/attach")).code == 404, "not asked, and there is no pod"


def test_a_scale_is_refused_and_changed_by_webhooks(hooks: Hooks) -> None:
    base = f"/apis/apps/v1/namespaces/{hooks.namespace}/deployments"
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"replicas": 2, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    hooks.cluster.create(base, {"metadata": {"name": "web"}, "spec": spec})
    rules = on("UPDATE", groups=["apps"], resources=["deployments/scale"])
    seen = hooks.add(lambda asked: {"allowed": asked["object"]["spec"]["replicas"] < 9}, "validating", rules=rules)
    hooks.add(
        lambda asked: patch(
            {"op": "replace", "path": "/spec/replicas", "value": asked["object"]["spec"]["replicas"] + 1}
        ),
        rules=rules,
    )
    merge = {"spec": {"replicas": 4}}
    assert hooks.cluster.patch(f"{base}/web/scale", merge)["spec"]["replicas"] == 5
    assert hooks.cluster.get(f"{base}/web")["spec"]["replicas"] == 5
    (first,) = hooks.endpoint.of(seen)
    assert first["kind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}
    assert first["resource"]["resource"] == "deployments" and first["subResource"] == "scale"
    assert first["oldObject"]["spec"]["replicas"] == 2 and first["oldObject"]["kind"] == "Scale"
    scale = hooks.cluster.get(f"{base}/web/scale")
    scale["spec"]["replicas"] = 30
    assert hooks.cluster.ask("PUT", f"{base}/web/scale", scale).code == 400
    assert hooks.cluster.get(f"{base}/web")["spec"]["replicas"] == 5


def test_match_conditions_decide_whether_a_webhook_is_called(hooks: Hooks) -> None:
    conditions = [{"name": "only-b", "expression": "object.metadata.name == 'b'"}]
    hooks.add(label("by", "hook"), matchConditions=conditions)
    assert "labels" not in hooks.create("a").json["metadata"]
    assert hooks.create("b").json["metadata"]["labels"] == {"by": "hook"}


@pytest.mark.parametrize(("failure", "code"), [("Fail", 403), ("Ignore", 201)])
def test_match_condition_that_fails_follows_the_failure_policy(hooks: Hooks, failure: str, code: int) -> None:
    conditions = [{"name": "broken", "expression": "object.nope == 1"}]
    path = hooks.add(label("by", "hook"), matchConditions=conditions, failurePolicy=failure)
    made = hooks.create("a")
    assert made.code == code and not hooks.endpoint.of(path)
    if code == 403:
        assert "resulted in error: no such key: nope" in made.json["message"]


def test_webhooks_get_the_user_that_removes_the_finalizers_of_a_namespace(hooks: Hooks) -> None:
    rules = on("UPDATE", resources=["namespaces/finalize"])
    path = hooks.add(lambda request: {"allowed": False}, kind="validating", rules=rules)
    place = f"/api/v1/namespaces/{hooks.namespace}"
    body = hooks.cluster.get(place)
    refused = hooks.cluster.ask("PUT", f"{place}/finalize", {**body, "spec": {"finalizers": ["example.com/mine"]}})
    assert refused.code == 400 and 'webhook "hook.example.com" denied the request' in refused.json["message"]
    (asked,) = hooks.endpoint.of(path)
    assert (asked["subResource"], asked["kind"]["kind"], asked["operation"]) == ("finalize", "Namespace", "UPDATE")
    assert asked["object"]["spec"] == {"finalizers": ["example.com/mine"]}
    assert hooks.cluster.get(place)["spec"] == body["spec"]
