"""A server with --authorization-mode RBAC: who may do what, who acts as which user, what the audit log says."""

from __future__ import annotations

import base64
import itertools
import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, utils

from phalanx.local.api.users import FILE, add_user, remove_user
from support.local_cluster import LocalCluster

Json = dict[str, Any]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
_numbers = itertools.count()


class Guarded:
    def __init__(self, cluster: LocalCluster, data: Path, log: Path) -> None:
        self.cluster, self.data, self.log = cluster, data, log

    def user(self, name: str, *groups: str) -> str:
        return add_user(self.data / FILE, name, groups)

    def namespace(self) -> str:
        name = f"team-{next(_numbers)}"
        self.cluster.create("/api/v1/namespaces", {"metadata": {"name": name}})
        return name

    def role(self, namespace: str, name: str, *rules: Json) -> None:
        base, kind = (
            (f"{RBAC}/namespaces/{namespace}/roles", "Role") if namespace else (f"{RBAC}/clusterroles", "ClusterRole")
        )
        body = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "rules": rules}
        self.cluster.create(base, body)

    def bind(self, namespace: str, kind: str, role: str, *subjects: Json, name: str = "") -> None:
        what = "rolebindings" if namespace else "clusterrolebindings"
        base = f"{RBAC}/namespaces/{namespace}/{what}" if namespace else f"{RBAC}/{what}"
        self.cluster.create(base, binding(kind, role, *subjects, name=name))

    def code(self, method: str, path: str, body: Any = None, **options: Any) -> int:
        return self.cluster.ask(method, path, body, **options).code


def binding(kind: str, role: str, *subjects: Json, name: str = "") -> Json:
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
    meta = {"name": name or f"binding-{next(_numbers)}"}
    return {"metadata": meta, "roleRef": ref, "subjects": list(subjects)}


def person(name: str) -> Json:
    return {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": name}


def group(name: str) -> Json:
    return {"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": name}


def rule(resources: list[str], verbs: list[str], groups: list[str] | None = None, **more: Any) -> Json:
    return {"apiGroups": groups or [""], "resources": resources, "verbs": verbs, **more}


@pytest.fixture(scope="module")
def guarded(start_cluster: Callable[..., LocalCluster], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data = tmp_path_factory.mktemp("guarded")
    log = data / "audit.log"
    options = {"run_nodes": False, "run_controllers": False, "run_scheduler": False}
    yield Guarded(start_cluster(data=data, authorization="RBAC", audit_log=log, **options), data, log)


def config(name: str) -> Json:
    return {"metadata": {"name": name}, "data": {"a": "b"}}


# -- roles -----------------------------------------------------------------------------------------------------------


def test_a_user_without_a_role_is_refused_in_kubernetes_words(guarded: Guarded) -> None:
    token = guarded.user("nobody")
    reply = guarded.cluster.ask("GET", "/api/v1/namespaces/default/pods", token=token)
    assert reply.code == 403
    assert reply.json["message"] == (
        'pods is forbidden: User "nobody" cannot list resource "pods" in API group "" in the namespace "default"'
    )
    assert reply.json["reason"] == "Forbidden" and reply.json["details"] == {"kind": "pods"}
    reply = guarded.cluster.ask("DELETE", "/apis/apps/v1/namespaces/default/deployments/x", token=token)
    assert reply.json["message"] == (
        'deployments.apps "x" is forbidden: User "nobody" cannot delete resource "deployments" in API group "apps" '
        'in the namespace "default"'
    )
    assert reply.json["details"] == {"name": "x", "group": "apps", "kind": "deployments"}
    reply = guarded.cluster.ask("GET", "/api/v1/nodes", token=token)
    assert reply.json["message"].endswith('cannot list resource "nodes" in API group "" at the cluster scope')
    reply = guarded.cluster.ask("GET", "/metrics", token=token)
    assert (reply.code, reply.json["message"]) == (403, 'forbidden: User "nobody" cannot get path "/metrics"')


def test_everybody_may_discover_and_the_administrator_may_do_all(guarded: Guarded) -> None:
    token = guarded.user("curious")
    for path in ("/api", "/apis", "/apis/apps/v1", "/openapi/v3", "/version", "/readyz"):
        assert guarded.code("GET", path, token=token) == 200
    assert guarded.code("GET", "/metrics") == 200
    assert guarded.code("GET", "/api/v1/nodes") == 200
    assert guarded.code("GET", "/api/v1/nodes", token="wrong") == 401


def test_a_role_counts_in_its_namespace_only(guarded: Guarded) -> None:
    here, there, token = guarded.namespace(), guarded.namespace(), guarded.user("reader")
    guarded.role(here, "reading", rule(["configmaps"], ["get", "list"]))
    guarded.bind(here, "Role", "reading", person("reader"))
    assert guarded.code("GET", f"/api/v1/namespaces/{here}/configmaps", token=token) == 200
    assert guarded.code("GET", f"/api/v1/namespaces/{there}/configmaps", token=token) == 403
    assert guarded.code("GET", "/api/v1/configmaps", token=token) == 403
    assert guarded.code("POST", f"/api/v1/namespaces/{here}/configmaps", config("x"), token=token) == 403


def test_names_and_subresources_are_rights_of_their_own(guarded: Guarded) -> None:
    here, token = guarded.namespace(), guarded.user("narrow")
    base = f"/api/v1/namespaces/{here}"
    for name in ("mine", "other"):
        guarded.cluster.create(f"{base}/configmaps", config(name))
    pod = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    guarded.cluster.create(f"{base}/pods", pod)
    names = rule(["configmaps"], ["get", "update", "list"], resourceNames=["mine"])
    guarded.role(here, "narrow", names, rule(["pods/status"], ["patch"]))
    guarded.bind(here, "Role", "narrow", person("narrow"))
    assert guarded.code("GET", f"{base}/configmaps/mine", token=token) == 200
    assert guarded.code("GET", f"{base}/configmaps/other", token=token) == 403
    assert guarded.code("GET", f"{base}/configmaps", token=token) == 403
    assert guarded.code("GET", f"{base}/configmaps", token=token, fieldSelector="metadata.name=mine") == 200
    patch = {"content_type": "application/merge-patch+json", "token": token}
    assert guarded.code("PATCH", f"{base}/pods/p/status", {"status": {"message": "m"}}, **patch) == 200
    assert guarded.code("PATCH", f"{base}/pods/p", {"metadata": {"labels": {"a": "b"}}}, **patch) == 403


def test_rights_are_checked_before_the_answer_that_nothing_runs(guarded: Guarded) -> None:
    space, token = guarded.namespace(), guarded.user("curious")
    spec = {"containers": [{"name": "c", "image": "i"}]}
    guarded.cluster.create(f"/api/v1/namespaces/{space}/pods", {"metadata": {"name": "p"}, "spec": spec})
    door = f"/api/v1/namespaces/{space}/pods/p/exec"
    refused = guarded.cluster.ask("POST", door, token=token, command="ls")
    said = f'User "curious" cannot create resource "pods/exec" in API group "" in the namespace "{space}"'
    assert refused.code == 403 and refused.json["message"] == f'pods "p" is forbidden: {said}'
    guarded.role(space, "enter", rule(["pods/exec"], ["create"]))
    guarded.bind(space, "Role", "enter", person("curious"))
    announced = guarded.cluster.ask("POST", door, token=token, command="ls")
    assert announced.code == 400 and "nothing runs in its containers" in announced.json["message"]
    assert guarded.code("GET", door, token=token, command="ls") == 403, "a web socket needs get"


def test_a_cluster_role_bound_in_a_namespace_counts_there(guarded: Guarded) -> None:
    here, token = guarded.namespace(), guarded.user("dev", "developers")
    guarded.bind(here, "ClusterRole", "edit", group("developers"))
    assert guarded.code("POST", f"/api/v1/namespaces/{here}/configmaps", config("x"), token=token) == 201
    assert guarded.code("GET", f"/apis/scheduling.k8s.io/v1beta1/namespaces/{here}/podgroups", token=token) == 200
    assert guarded.code("GET", f"{RBAC}/namespaces/{here}/roles", token=token) == 403
    assert guarded.code("GET", "/api/v1/namespaces/default/configmaps", token=token) == 403
    assert guarded.code("GET", f"/api/v1/namespaces/{here}", token=token) == 200


def test_a_cluster_role_with_the_label_adds_to_view(guarded: Guarded) -> None:
    token = guarded.user("viewer")
    guarded.bind("", "ClusterRole", "view", person("viewer"))
    path = "/apis/coordination.k8s.io/v1/leases"
    assert guarded.code("GET", path, token=token) == 403
    labels = {"rbac.authorization.k8s.io/aggregate-to-view": "true"}
    rules = [rule(["leases"], ["list"], ["coordination.k8s.io"])]
    guarded.cluster.create(
        f"{RBAC}/clusterroles", {"metadata": {"name": "see-leases", "labels": labels}, "rules": rules}
    )
    assert guarded.code("GET", path, token=token) == 200
    for role in ("view", "edit", "admin"):  # and readers of the role see it there
        guarded.cluster.wait(f"{RBAC}/clusterroles/{role}", lambda found: rules[0] in found["rules"])
    guarded.cluster.delete(f"{RBAC}/clusterroles/see-leases")
    assert guarded.code("GET", path, token=token) == 403
    for role in ("view", "edit", "admin"):
        guarded.cluster.wait(f"{RBAC}/clusterroles/{role}", lambda found: rules[0] not in found["rules"])


def test_a_binding_to_a_missing_role_says_so(guarded: Guarded) -> None:
    token = guarded.user("early")
    guarded.bind("", "ClusterRole", "not-yet", person("early"))
    reply = guarded.cluster.ask("GET", "/api/v1/nodes", token=token)
    assert 'RBAC: clusterrole.rbac.authorization.k8s.io "not-yet" not found' in reply.json["message"]
    guarded.role("", "not-yet", rule(["nodes"], ["*"]))
    assert guarded.code("GET", "/api/v1/nodes", token=token) == 200


# -- no user gives what it has not -------------------------------------------------------------------------------------


def test_no_user_gives_rights_that_it_does_not_have(guarded: Guarded) -> None:
    here, token = guarded.namespace(), guarded.user("boss")
    guarded.bind(here, "ClusterRole", "admin", person("boss"))
    roles, bindings = f"{RBAC}/namespaces/{here}/roles", f"{RBAC}/namespaces/{here}/rolebindings"

    def role(name: str, *rules: Json) -> Json:
        return {"metadata": {"name": name}, "rules": list(rules)}

    assert guarded.code("POST", roles, role("fine", rule(["pods"], ["get"])), token=token) == 201
    refused = guarded.cluster.ask("POST", roles, role("more", rule(["nodes"], ["delete"])), token=token)
    assert refused.code == 403
    assert "is attempting to grant RBAC permissions not currently held" in refused.json["message"]
    assert '{APIGroups:[""], Resources:["nodes"], Verbs:["delete"]}' in refused.json["message"]
    change = {"rules": [rule(["*"], ["*"])]}
    options = {"content_type": "application/merge-patch+json", "token": token}
    assert guarded.code("PATCH", f"{roles}/fine", change, **options) == 403
    assert guarded.code("PATCH", f"{roles}/fine", {"metadata": {"labels": {"a": "b"}}}, **options) == 200
    assert guarded.code("POST", bindings, binding("ClusterRole", "view", person("friend")), token=token) == 201
    assert guarded.code("POST", bindings, binding("ClusterRole", "cluster-admin", person("friend")), token=token) == 403
    guarded.role("", "may-bind", rule(["clusterroles"], ["bind"], ["rbac.authorization.k8s.io"]))
    guarded.bind("", "ClusterRole", "may-bind", person("boss"))
    assert guarded.code("POST", bindings, binding("ClusterRole", "cluster-admin", person("friend")), token=token) == 201


# -- users, service accounts, impersonation ----------------------------------------------------------------------------


def test_a_user_who_was_removed_is_out_at_once(guarded: Guarded) -> None:
    token = guarded.user("leaver")
    assert guarded.code("GET", "/api", token=token) == 200
    newer = guarded.user("leaver")
    assert guarded.code("GET", "/api", token=token) == 401
    assert guarded.code("GET", "/api", token=newer) == 200
    assert remove_user(guarded.data / FILE, "leaver") and not remove_user(guarded.data / FILE, "leaver")
    assert guarded.code("GET", "/api", token=newer) == 401
    file = guarded.data / FILE
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and newer not in file.read_text()


def account_token(guarded: Guarded, namespace: str, name: str, **spec: Any) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
    reply = guarded.cluster.create(
        path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    )
    return str(reply["status"]["token"])


def test_a_service_account_has_the_rights_of_its_bindings(guarded: Guarded) -> None:
    here = guarded.namespace()
    guarded.cluster.create(f"/api/v1/namespaces/{here}/serviceaccounts", {"metadata": {"name": "robot"}})
    token = account_token(guarded, here, "robot")
    path = f"/api/v1/namespaces/{here}/configmaps"
    assert guarded.code("GET", path, token=token) == 403
    guarded.bind(here, "ClusterRole", "view", {"kind": "ServiceAccount", "name": "robot", "namespace": here})
    assert guarded.code("GET", path, token=token) == 200
    assert guarded.code("GET", f"/api/v1/namespaces/{here}/secrets", token=token) == 403
    guarded.cluster.delete(f"/api/v1/namespaces/{here}/serviceaccounts/robot")
    assert guarded.code("GET", path, token=token) == 401


def test_the_parts_of_kubernetes_find_their_roles(guarded: Guarded) -> None:
    """kube-controller-manager --use-service-account-credentials has one service account for every controller."""
    accounts = "/api/v1/namespaces/kube-system/serviceaccounts"
    guarded.cluster.create(accounts, {"metadata": {"name": "replicaset-controller"}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    made = guarded.cluster.create(f"{accounts}/replicaset-controller/token", request)
    token = made["status"]["token"]
    assert guarded.code("GET", "/apis/apps/v1/replicasets", token=token) == 200
    assert guarded.code("GET", "/api/v1/secrets", token=token) == 403
    scheduler = guarded.user("system:kube-scheduler")
    for path in ("/api/v1/pods", "/apis/resource.k8s.io/v1/resourceclaims", "/apis/storage.k8s.io/v1/csinodes"):
        assert guarded.code("GET", path, token=scheduler) == 200, path
    known = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication"
    assert guarded.code("GET", known, token=scheduler) == 200  # by a Role of kube-system
    assert guarded.code("GET", "/api/v1/namespaces/kube-system/configmaps/other", token=scheduler) == 403
    assert "BEGIN CERTIFICATE" in guarded.cluster.get(known)["data"]["client-ca-file"]
    since = guarded.cluster.get(
        "/api/v1/namespaces/kube-system/configmaps/kube-apiserver-legacy-service-account-token-tracking"
    )
    assert len(since["data"]["since"]) == len("2026-01-01")


def test_others_can_verify_the_tokens_of_service_accounts(guarded: Guarded) -> None:
    namespace = guarded.namespace()
    accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    guarded.cluster.create(accounts, {"metadata": {"name": "app"}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": ["vault"]}}
    token = guarded.cluster.create(f"{accounts}/app/token", request)["status"]["token"]
    found = guarded.cluster.get("/.well-known/openid-configuration")
    assert found["issuer"] == "https://kubernetes.default.svc" and found["jwks_uri"].endswith("/openid/v1/jwks")
    (key,) = guarded.cluster.get("/openid/v1/jwks")["keys"]
    head, claims, signature = (base64.urlsafe_b64decode(part + "==") for part in token.split("."))
    assert json.loads(head) == {"alg": "ES256", "kid": key["kid"], "typ": "JWT"}
    assert json.loads(claims)["sub"] == f"system:serviceaccount:{namespace}:app"
    x, y = (int.from_bytes(base64.urlsafe_b64decode(key[part] + "==")) for part in "xy")
    public = ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    encoded = utils.encode_dss_signature(int.from_bytes(signature[:32]), int.from_bytes(signature[32:]))
    public.verify(encoded, token.rpartition(".")[0].encode(), ec.ECDSA(hashes.SHA256()))  # raises where it is not
    allowed = guarded.cluster.create(f"{accounts}/app/token", {**request, "spec": {}})["status"]["token"]
    assert guarded.code("GET", "/openid/v1/jwks", token=allowed) == 200
    assert guarded.code("GET", "/openid/v1/jwks", token=guarded.user("nobody-special")) == 403
    forged = f"{allowed[:-4]}AAAA"
    assert guarded.code("GET", "/openid/v1/jwks", token=forged) == 401


def test_a_token_bound_to_a_pod_ends_with_it(guarded: Guarded) -> None:
    here = guarded.namespace()
    base = f"/api/v1/namespaces/{here}"
    guarded.cluster.create(f"{base}/serviceaccounts", {"metadata": {"name": "robot"}})
    spec = {"serviceAccountName": "robot", "containers": [{"name": "c", "image": "i"}]}
    guarded.cluster.create(f"{base}/pods", {"metadata": {"name": "p"}, "spec": spec})
    ref = {"kind": "Pod", "apiVersion": "v1", "name": "p"}
    token = account_token(guarded, here, "robot", boundObjectRef=ref)
    reviews = "/apis/authentication.k8s.io/v1/tokenreviews"
    status = guarded.cluster.create(reviews, {"spec": {"token": token}})["status"]
    assert status["authenticated"] and status["user"]["username"] == f"system:serviceaccount:{here}:robot"
    assert status["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["p"]
    wrong = {"spec": {"boundObjectRef": {**ref, "uid": "another"}}}
    assert guarded.code("POST", f"{base}/serviceaccounts/robot/token", wrong) == 409
    guarded.cluster.delete(f"{base}/pods/p")
    assert not guarded.cluster.create(reviews, {"spec": {"token": token}})["status"].get("authenticated")
    assert guarded.code("GET", "/api", token=token) == 401


def test_a_token_for_others_is_no_token_for_this_server(guarded: Guarded) -> None:
    here = guarded.namespace()
    guarded.cluster.wait(f"/api/v1/namespaces/{here}/serviceaccounts", lambda found: bool(found["items"]))
    token = account_token(guarded, here, "default", audiences=["vault"])
    assert guarded.code("GET", "/api", token=token) == 401
    reviews = "/apis/authentication.k8s.io/v1/tokenreviews"
    status = guarded.cluster.create(reviews, {"spec": {"token": token, "audiences": ["vault", "x"]}})["status"]
    assert status["authenticated"] and status["audiences"] == ["vault"]


def test_acting_as_another_user_needs_the_right_to(guarded: Guarded) -> None:
    here, token = guarded.namespace(), guarded.user("actor")
    guarded.user("role-holder")
    guarded.bind(here, "ClusterRole", "view", person("role-holder"))
    path, headers = f"/api/v1/namespaces/{here}/pods", {"Impersonate-User": "role-holder"}
    assert guarded.code("GET", path, headers=headers) == 200
    refused = guarded.cluster.ask("GET", path, token=token, headers=headers)
    assert refused.code == 403
    assert (
        'users "role-holder" is forbidden: User "actor" cannot impersonate resource "users"' in refused.json["message"]
    )
    guarded.role("", "act", rule(["users"], ["impersonate"], resourceNames=["role-holder"]))
    guarded.bind("", "ClusterRole", "act", person("actor"))
    assert guarded.code("GET", path, token=token, headers=headers) == 200
    more = {**headers, "Impersonate-Group": "system:masters"}
    assert guarded.code("GET", path, token=token, headers=more) == 403
    assert guarded.code("GET", "/api/v1/nodes", headers=headers) == 403  # the administrator is role-holder now
    assert guarded.code("GET", "/api/v1/nodes", headers={"Impersonate-Group": "x"}) == 400


# -- questions ---------------------------------------------------------------------------------------------------------


def test_reviews_answer_as_requests_are_answered(guarded: Guarded) -> None:
    here, token = guarded.namespace(), guarded.user("asker")
    guarded.bind(here, "ClusterRole", "view", person("asker"))
    base = "/apis/authorization.k8s.io/v1"

    def may(verb: str, resource: str, **options: Any) -> bool:
        spec = {"resourceAttributes": {"verb": verb, "resource": resource, "namespace": here}}
        reply = guarded.cluster.create(f"{base}/selfsubjectaccessreviews", {"spec": spec}, **options)
        return bool(reply["status"]["allowed"])

    assert may("list", "pods", token=token) and not may("list", "secrets", token=token)
    assert may("list", "secrets") and not may("list", "secrets", headers={"Impersonate-User": "asker"})
    about = {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": here}}
    status = guarded.cluster.create(f"{base}/subjectaccessreviews", {"spec": {**about, "user": "asker"}})["status"]
    assert status["allowed"] and "RBAC: allowed by RoleBinding" in status["reason"]
    status = guarded.cluster.create(f"{base}/subjectaccessreviews", {"spec": {**about, "user": "else"}})["status"]
    assert not status["allowed"]
    assert guarded.code("POST", f"{base}/subjectaccessreviews", {"spec": {**about, "user": "x"}}, token=token) == 403
    rules = guarded.cluster.create(f"{base}/selfsubjectrulesreviews", {"spec": {"namespace": here}}, token=token)
    found = rules["status"]["resourceRules"]
    assert any("podgroups" in each["resources"] and "list" in each["verbs"] for each in found)
    assert not any("secrets" in each["resources"] for each in found)


# -- audit -------------------------------------------------------------------------------------------------------------


def test_the_audit_log_says_who_did_what_and_nothing_secret(guarded: Guarded) -> None:
    here, token = guarded.namespace(), guarded.user("watched")
    secret = {"metadata": {"name": "s"}, "stringData": {"password": "hunter2-of-the-test"}}
    guarded.cluster.create(f"/api/v1/namespaces/{here}/secrets", secret)
    guarded.code("GET", f"/api/v1/namespaces/{here}/secrets/s", token=token)
    guarded.code("GET", f"/api/v1/namespaces/{here}/secrets/s", headers={"Impersonate-User": "watched"})
    guarded.code("GET", "/version")  # a line is written when its answer has gone out: this one is answered later
    assert stat.S_IMODE(guarded.log.stat().st_mode) == 0o600
    text = guarded.log.read_text()
    for word in (token, guarded.cluster.token, "hunter2", "aHVudGVyM"):
        assert word not in text
    events = [json.loads(line) for line in text.splitlines()]
    ours = [event for event in events if (event.get("objectRef") or {}).get("namespace") == here]
    made, read, acted = [event for event in ours if event["objectRef"]["resource"] == "secrets"]
    assert (made["verb"], made["responseStatus"]["code"], made["user"]["username"]) == ("create", 201, "phalanx:admin")
    assert (made["kind"], made["apiVersion"], made["level"]) == ("Event", "audit.k8s.io/v1", "Metadata")
    assert (read["verb"], read["responseStatus"]["code"], read["user"]["username"]) == ("get", 403, "watched")
    assert read["annotations"]["authorization.k8s.io/decision"] == "forbid"
    assert read["objectRef"] == {"resource": "secrets", "namespace": here, "name": "s", "apiVersion": "v1"}
    assert acted["user"]["username"] == "phalanx:admin" and acted["impersonatedUser"]["username"] == "watched"
    assert not any("requestObject" in event or "responseObject" in event for event in events)


@pytest.mark.parametrize("key", ["scheduling.phalanx.dev/pods-to-come", "scheduling.phalanx.dev/replaces"])
def test_a_tenant_cannot_reserve_room_under_the_name_of_our_controllers(guarded: Guarded, key: str) -> None:
    space = guarded.namespace()
    token = guarded.user(f"tenant-{space}")
    guarded.bind(space, "ClusterRole", "edit", person(f"tenant-{space}"))
    base = f"/apis/scheduling.k8s.io/v1beta1/namespaces/{space}/podgroups"
    plain: Json = {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}}
    greedy = {**plain, "metadata": {"name": "g", "annotations": {key: "{}"}}}
    reply = guarded.cluster.ask("POST", f"{base}?fieldManager=phalanx-controllers", greedy, token=token)
    assert (reply.code, "may only be written by the Phalanx controllers" in reply.json["message"]) == (403, True)
    assert guarded.code("POST", base, plain, token=token) == 201
    change = {"metadata": {"annotations": {key: "{}"}}}
    merge = {"content_type": "application/merge-patch+json"}
    manager = f"{base}/g?fieldManager=phalanx-controllers"
    assert guarded.code("PATCH", manager, change, token=token, **merge) == 403
    assert guarded.code("PATCH", manager, change, **merge) == 200  # an administrator
    more = {"metadata": {"labels": {"a": "b"}}}
    assert guarded.code("PATCH", f"{base}/g", more, token=token, **merge) == 200  # what is there may stay
