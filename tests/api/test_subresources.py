"""Binding, eviction, scale, tokens and the questions about access."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from phalanx.base.errors import ApiProblem, BadRequest, Conflict, Forbidden, Invalid, NotFound, TooManyRequests
from support.api_world import DEPLOYMENTS, MERGE, PODS, STRATEGIC, World, deployment
from support.local_cluster import LocalCluster
from support.manifests import pod

NODE = {"target": {"kind": "Node", "name": "n1"}}


# -- binding ------------------------------------------------------------------------------------------------------


def test_binding_gives_a_pod_its_node_once(world: World) -> None:
    world.create(PODS, pod("p"))
    answer = world.ask("create", f"{PODS}/p/binding", NODE)
    assert answer.code == 201 and msgspec.json.decode(answer.body)["status"] == "Success"
    bound = world.get(f"{PODS}/p")
    assert bound["spec"]["nodeName"] == "n1"
    (condition,) = [c for c in bound["status"]["conditions"] if c["type"] == "PodScheduled"]
    assert condition["status"] == "True"
    with pytest.raises(Conflict) as caught:
        world.create(f"{PODS}/p/binding", {"target": {"name": "n2"}})
    assert caught.value.message == (
        'Operation cannot be fulfilled on pods/binding "p": pod p is already assigned to node "n1"'
    )


def test_binding_replaces_an_earlier_verdict_and_nomination(world: World) -> None:
    world.create(PODS, pod("p"))
    verdict = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m"}
    world.patch(f"{PODS}/p/status", {"status": {"conditions": [verdict], "nominatedNodeName": "n9"}}, STRATEGIC)
    world.create(f"{PODS}/p/binding", NODE)
    status = world.get(f"{PODS}/p")["status"]
    assert [(c["type"], c["status"], "reason" in c) for c in status["conditions"]] == [("PodScheduled", "True", False)]
    assert "nominatedNodeName" not in status


def test_binding_carries_labels_and_annotations(world: World) -> None:
    world.create(PODS, pod("p"))
    metadata = {"labels": {"rack": "r1"}, "annotations": {"why": "because"}}
    world.create(f"{PODS}/p/binding", {**NODE, "metadata": metadata})
    bound = world.get(f"{PODS}/p")["metadata"]
    assert bound["labels"] == {"app": "p", "rack": "r1"} and bound["annotations"] == {"why": "because"}


def test_what_cannot_be_bound(world: World) -> None:
    with pytest.raises(NotFound, match='pods "nobody" not found'):
        world.create(f"{PODS}/nobody/binding", NODE)
    world.create(PODS, pod("gated", schedulingGates=[{"name": "wait"}]))
    with pytest.raises(Conflict, match=r"pod gated has non-empty \.spec\.schedulingGates"):
        world.create(f"{PODS}/gated/binding", NODE)
    held = pod("dying")
    held["metadata"]["finalizers"] = ["example.com/a"]
    world.create(PODS, held)
    world.delete(f"{PODS}/dying")
    with pytest.raises(Conflict, match="pod dying is being deleted, cannot be assigned to a host"):
        world.create(f"{PODS}/dying/binding", NODE)
    world.create(PODS, pod("p"))
    for body in ({"target": {}}, {"target": {"kind": "Rack", "name": "r"}}):
        with pytest.raises(Invalid, match=r"target\."):
            world.create(f"{PODS}/p/binding", body)
    with pytest.raises(BadRequest, match="name in URL does not match name in Binding object"):
        world.create(f"{PODS}/p/binding", {**NODE, "metadata": {"name": "q"}})
    with pytest.raises(Conflict, match="Precondition failed"):
        world.create(f"{PODS}/p/binding", {**NODE, "metadata": {"name": "p", "uid": "other"}})


def test_the_older_way_to_bind(world: World) -> None:
    world.create(PODS, pod("p"))
    world.create("/api/v1/namespaces/ns/bindings", {**NODE, "metadata": {"name": "p"}})
    assert world.get(f"{PODS}/p")["spec"]["nodeName"] == "n1"


def test_a_dry_binding_binds_nothing(world: World) -> None:
    world.create(PODS, pod("p"))
    world.create(f"{PODS}/p/binding", NODE, dryRun="All")
    assert "nodeName" not in world.get(f"{PODS}/p")["spec"]


# -- eviction -----------------------------------------------------------------------------------------------------

BUDGETS = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets"


def running(world: World, name: str, *, ready: bool = True) -> None:
    body = pod(name)
    body["metadata"]["labels"] = {"app": "web"}
    world.create(PODS, body)
    world.create(f"{PODS}/{name}/binding", NODE)
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    world.patch(f"{PODS}/{name}/status", {"status": status}, STRATEGIC)


def budget(world: World, name: str = "b", spec: Any = None, **status: Any) -> None:
    body = {
        "metadata": {"name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}, **(spec or {})},
    }
    made = world.create(BUDGETS, body)
    full = {
        "observedGeneration": made["metadata"]["generation"],
        "disruptionsAllowed": 0,
        "currentHealthy": 2,
        "desiredHealthy": 1,
        "expectedPods": 2,
        **status,
    }
    world.patch(f"{BUDGETS}/{name}/status", {"status": full})


def evict(world: World, name: str, body: Any = None, **query: str) -> Any:
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, **(body or {})}
    return world.create(f"{PODS}/{name}/eviction", eviction, **query)


def test_an_eviction_deletes_with_grace_and_says_why(world: World) -> None:
    running(world, "p")
    assert evict(world, "p")["status"] == "Success"
    evicted = world.get(f"{PODS}/p")
    assert evicted["metadata"]["deletionTimestamp"]
    (condition,) = [c for c in evicted["status"]["conditions"] if c["type"] == "DisruptionTarget"]
    assert (condition["reason"], condition["message"]) == ("EvictionByEvictionAPI", "Eviction API: evicting")


def test_the_budget_pays_for_every_eviction(world: World) -> None:
    for name in ("p", "q"):
        running(world, name)
    budget(world, disruptionsAllowed=1)
    evict(world, "p")
    status = world.get(f"{BUDGETS}/b")["status"]
    assert status["disruptionsAllowed"] == 0 and list(status["disruptedPods"]) == ["p"]
    with pytest.raises(TooManyRequests) as caught:
        evict(world, "q")
    assert caught.value.message == "Cannot evict pod as it would violate the pod's disruption budget."
    assert caught.value.causes[0]["reason"] == "DisruptionBudget"
    assert "deletionTimestamp" not in world.get(f"{PODS}/q")["metadata"]


def test_a_budget_says_how_many_it_needs(world: World) -> None:
    running(world, "p")
    budget(world, currentHealthy=1, desiredHealthy=1)
    with pytest.raises(TooManyRequests) as caught:
        evict(world, "p")
    assert caught.value.causes[0]["message"] == "The disruption budget b needs 1 healthy pods and has 1 currently"
    assert caught.value.http_code == 429


def test_a_budget_without_a_status_does_not_allow_anything(world: World) -> None:
    running(world, "p")
    budget(world, disruptionsAllowed=5, observedGeneration=0)
    with pytest.raises(TooManyRequests) as caught:
        evict(world, "p")
    assert caught.value.causes[0]["message"] == "The disruption budget b is still being processed by the server."
    assert caught.value.retry_after == 10


def test_more_than_one_budget_is_not_supported(world: World) -> None:
    running(world, "p")
    budget(world, "b", disruptionsAllowed=5)
    budget(world, "c", disruptionsAllowed=5)
    with pytest.raises(ApiProblem, match="more than one PodDisruptionBudget") as caught:
        evict(world, "p")
    assert caught.value.http_code == 500


def test_unready_pods_go_free_while_the_others_suffice(world: World) -> None:
    running(world, "p", ready=False)
    budget(world, disruptionsAllowed=0, currentHealthy=1, desiredHealthy=1)
    evict(world, "p")
    assert not world.get(f"{BUDGETS}/b")["status"].get("disruptedPods"), "nothing was paid"
    running(world, "q", ready=False)
    world.patch(f"{BUDGETS}/b/status", {"status": {"currentHealthy": 0}})
    with pytest.raises(TooManyRequests):
        evict(world, "q")


def test_unready_pods_always_go_free_when_the_budget_says_so(world: World) -> None:
    running(world, "p", ready=False)
    budget(world, spec={"unhealthyPodEvictionPolicy": "AlwaysAllow"}, currentHealthy=0, desiredHealthy=3)
    assert evict(world, "p")["status"] == "Success"


def test_pods_that_run_nothing_need_no_budget(world: World) -> None:
    body = pod("p")
    body["metadata"]["labels"] = {"app": "web"}
    world.create(PODS, body)
    budget(world)
    evict(world, "p")
    assert world.get(f"{PODS}/p") is None


def test_a_dry_eviction_asks_only(world: World) -> None:
    running(world, "p")
    budget(world, disruptionsAllowed=1)
    evict(world, "p", dryRun="All")
    assert world.get(f"{BUDGETS}/b")["status"]["disruptionsAllowed"] == 1
    assert "deletionTimestamp" not in world.get(f"{PODS}/p")["metadata"]


def test_bad_evictions(world: World) -> None:
    with pytest.raises(NotFound):
        evict(world, "nobody")
    running(world, "p")
    with pytest.raises(BadRequest, match="name in URL does not match name in Eviction object"):
        world.create(f"{PODS}/p/eviction", {"metadata": {"name": "q"}})
    with pytest.raises(Conflict):
        evict(world, "p", {"deleteOptions": {"preconditions": {"uid": "other"}}})
    budget(world, disruptionsAllowed=-1)
    with pytest.raises(Forbidden, match="pdb disruptions allowed is negative"):
        evict(world, "p")


# -- scale --------------------------------------------------------------------------------------------------------


def test_scale_changes_replicas_only(world: World) -> None:
    world.create(DEPLOYMENTS, deployment(replicas=2))
    scaled = world.patch(f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": 5}}, MERGE, fieldManager="kubectl-scale")
    assert scaled["kind"] == "Scale" and scaled["apiVersion"] == "autoscaling/v1"
    assert scaled["spec"] == {"replicas": 5} and scaled["status"]["selector"] == "app=web"
    stored = world.get(f"{DEPLOYMENTS}/web")
    assert stored["spec"]["replicas"] == 5 and stored["metadata"]["generation"] == 2
    entry = next(e for e in stored["metadata"]["managedFields"] if e["manager"] == "kubectl-scale")
    assert entry["subresource"] == "scale" and entry["fieldsV1"] == {"f:spec": {"f:replicas": {}}}


def test_scale_by_update(world: World) -> None:
    world.create(DEPLOYMENTS, deployment())
    scale = {"metadata": {"name": "web"}, "spec": {"replicas": 0}}
    world.update(f"{DEPLOYMENTS}/web/scale", scale)
    assert world.get(f"{DEPLOYMENTS}/web")["spec"]["replicas"] == 0
    scale["metadata"]["resourceVersion"] = "1"  # type: ignore[index]
    with pytest.raises(Conflict):
        world.update(f"{DEPLOYMENTS}/web/scale", scale)


def test_bad_scales(world: World) -> None:
    world.create(DEPLOYMENTS, deployment())
    with pytest.raises(Invalid, match="spec.replicas: Invalid value: -1: must be greater than or equal to 0"):
        world.patch(f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": -1}})
    for body in ({"spec": {"replicas": "many"}}, {"spec": 3}):
        with pytest.raises(BadRequest):
            world.patch(f"{DEPLOYMENTS}/web/scale", body)
    with pytest.raises(NotFound):
        world.patch(f"{DEPLOYMENTS}/nobody/scale", {"spec": {"replicas": 1}})


# -- tokens and reviews -------------------------------------------------------------------------------------------


def test_a_service_account_gets_a_token(world: World) -> None:
    accounts = "/api/v1/namespaces/ns/serviceaccounts"
    world.create(accounts, {"metadata": {"name": "sa"}})
    answer = world.create(f"{accounts}/sa/token", {"spec": {"expirationSeconds": 900}})
    assert answer["kind"] == "TokenRequest" and len(answer["status"]["token"].split(".")) == 3
    assert answer["status"]["expirationTimestamp"] == "2023-11-14T22:28:20Z"
    with pytest.raises(NotFound):
        world.create(f"{accounts}/nobody/token", {})
    with pytest.raises(Invalid, match="may not specify a duration less than 10 minutes"):
        world.create(f"{accounts}/sa/token", {"spec": {"expirationSeconds": 5}})
    with pytest.raises(Invalid, match="10 minutes"):
        world.create(f"{accounts}/sa/token", {"spec": {"expirationSeconds": 0}})
    with pytest.raises(Invalid, match="may not specify a duration larger than 2\\^32 seconds"):
        world.create(f"{accounts}/sa/token", {"spec": {"expirationSeconds": 10**12}})


@pytest.mark.parametrize(
    ("path", "spec"),
    [
        ("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {"resourceAttributes": {"verb": "get"}}),
        (
            "/apis/authorization.k8s.io/v1/subjectaccessreviews",
            {"user": "me", "nonResourceAttributes": {"path": "/x", "verb": "get"}},
        ),
        (
            "/apis/authorization.k8s.io/v1/namespaces/ns/localsubjectaccessreviews",
            {"user": "me", "resourceAttributes": {"namespace": "ns", "verb": "get"}},
        ),
    ],
)
def test_the_local_user_may_do_everything(world: World, path: str, spec: Any) -> None:
    assert world.create(path, {"spec": spec})["status"]["allowed"] is True


def test_a_question_without_its_parts_is_refused(world: World) -> None:
    base = "/apis/authorization.k8s.io/v1"
    with pytest.raises(Invalid, match="exactly one of nonResourceAttributes or resourceAttributes must be specified"):
        world.create(f"{base}/selfsubjectaccessreviews", {"spec": {}})
    with pytest.raises(Invalid, match="at least one of user or group must be specified"):
        world.create(f"{base}/subjectaccessreviews", {"spec": {"resourceAttributes": {"verb": "get"}}})
    other = {"user": "me", "resourceAttributes": {"namespace": "other"}}
    with pytest.raises(Invalid, match="must match metadata.namespace"):
        world.create(f"{base}/namespaces/ns/localsubjectaccessreviews", {"spec": other})


def test_who_am_i(world: World) -> None:
    answer = world.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert answer["status"]["userInfo"]["username"] == "phalanx:admin"
    rules = world.create("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {"spec": {"namespace": "ns"}})
    assert rules["status"]["resourceRules"][0]["verbs"] == ["*"]


def test_a_token_review_tells_whose_token_it_is(world: World) -> None:
    accounts, reviews = "/api/v1/namespaces/ns/serviceaccounts", "/apis/authentication.k8s.io/v1/tokenreviews"
    world.create(accounts, {"metadata": {"name": "sa"}})
    token = world.create(f"{accounts}/sa/token", {})["status"]["token"]

    def review(text: str) -> Any:
        return world.create(reviews, {"spec": {"token": text}})["status"]

    assert review(token)["user"]["username"] == "system:serviceaccount:ns:sa"
    head, claims, signature = token.split(".")
    for wrong in ("t", "", ".", "..", f"{head}.{claims}.", f"{head}.{claims[:-4]}AAAA.{signature}", token + "x"):
        assert not review(wrong).get("authenticated"), wrong
    other = world.create(f"{accounts}/sa/token", {"spec": {"audiences": ["somebody-else"]}})["status"]["token"]
    assert not review(other).get("authenticated")
    world.delete(f"{accounts}/sa")
    world.create(accounts, {"metadata": {"name": "sa"}})
    assert not review(token).get("authenticated"), "another account of the same name"


def test_a_status_write_changes_labels_of_those_kinds_where_kubernetes_lets_it(world: World) -> None:
    metadata = {"labels": {"x": "1"}, "annotations": {"y": "2"}}
    jobs = "/apis/batch/v1/namespaces/ns/jobs"
    template = {"spec": {"containers": [{"name": "c", "image": "i"}], "restartPolicy": "Never"}}
    world.create(jobs, {"metadata": {"name": "j"}, "spec": {"template": template}})
    job = world.patch(f"{jobs}/j/status", {"metadata": metadata, "status": {"active": 1}})
    assert job["metadata"]["labels"]["x"] == "1" and job["metadata"]["annotations"]["y"] == "2"
    world.create(DEPLOYMENTS, deployment())
    web = world.patch(f"{DEPLOYMENTS}/web/status", {"metadata": metadata, "status": {"replicas": 1}})
    assert "labels" not in web["metadata"] and web["metadata"]["annotations"] == {"y": "2"}
    groups = "/apis/scheduling.k8s.io/v1beta1/namespaces/ns/podgroups"
    world.create(groups, {"metadata": {"name": "g"}, "spec": {"schedulingPolicy": {"basic": {}}}})
    group = world.patch(f"{groups}/g/status", {"metadata": metadata, "status": {"conditions": []}})
    assert "labels" not in group["metadata"] and "annotations" not in group["metadata"]
    world.create(PODS, pod("a"))
    owner = {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]}
    found = world.patch(f"{PODS}/a/status", {"metadata": metadata | owner, "status": {"phase": "Running"}})
    assert found["metadata"]["labels"] == {"app": "a", "x": "1"} and "ownerReferences" not in found["metadata"]


# -- parts of pods -----------------------------------------------------------------------------------------------


def asking(world: World, **requests: str) -> str:
    body = pod("p")
    body["spec"]["containers"] = [{"name": "c", "image": "i", "resources": {"requests": requests}}]
    world.create(PODS, body)
    return f"{PODS}/p"


def resize(world: World, path: str, **container: Any) -> Any:
    patch = {"spec": {"containers": [{"name": "c", **container}]}, "metadata": {"labels": {"x": "y"}}}
    return world.patch(f"{path}/resize", patch, STRATEGIC)


def test_a_resize_changes_cpu_and_memory_and_nothing_else(world: World) -> None:
    path = asking(world, cpu="1", memory="1Gi")
    with pytest.raises(Invalid, match="pod updates may not change fields other than"):  # by the front door
        world.patch(path, {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}]}}, STRATEGIC)
    resized = resize(world, path, resources={"requests": {"cpu": "2"}}, image="other")
    container = resized["spec"]["containers"][0]
    assert container["resources"] == {"requests": {"cpu": "2", "memory": "1Gi"}} and container["image"] == "i"
    assert resized["metadata"]["generation"] == 2 and "x" not in resized["metadata"]["labels"]
    assert [found.get("subresource") for found in resized["metadata"]["managedFields"]][-1] == "resize"
    for words, asked in (
        ("Pod QOS Class may not change as a result of resizing", {"limits": {"cpu": "2", "memory": "1Gi"}}),
        ("only cpu and memory resources are mutable", {"requests": {"ephemeral-storage": "1Gi"}}),
        (r"spec.containers\[0\].resources.requests: Forbidden: resource requests cannot be removed",
         {"requests": {"cpu": None}}),
    ):  # fmt: skip
        with pytest.raises(Invalid, match=words):
            resize(world, path, resources=asked)
    several = {"spec": {"containers": [{"name": "new", "image": "i"}]}}
    with pytest.raises(Invalid, match="spec.containers: Forbidden: containers may not be added or removed on resize"):
        world.patch(f"{path}/resize", several, STRATEGIC)


def test_a_resize_keeps_to_limits_and_quotas(world: World) -> None:
    path = asking(world, cpu="1")
    ranges = "/api/v1/namespaces/ns/limitranges"
    world.create(ranges, {"metadata": {"name": "l"}, "spec": {"limits": [{"type": "Pod", "min": {"cpu": "500m"}}]}})
    with pytest.raises(Forbidden, match="minimum cpu usage per Pod is 500m, but request is 250m"):
        resize(world, path, resources={"requests": {"cpu": "250m"}})
    quotas = "/api/v1/namespaces/ns/resourcequotas"
    world.create(quotas, {"metadata": {"name": "q"}, "spec": {"hard": {"requests.cpu": "2"}}})
    assert resize(world, path, resources={"requests": {"cpu": "2"}})["metadata"]["generation"] == 2
    with pytest.raises(Forbidden, match="exceeded quota: q, requested: requests.cpu=1, used: requests.cpu=2"):
        resize(world, path, resources={"requests": {"cpu": "3"}})


def test_ephemeral_containers_come_and_stay_as_they_are(world: World) -> None:
    path = asking(world, cpu="1")

    def look(**container: Any) -> Any:
        return world.patch(f"{path}/ephemeralcontainers", {"spec": {"ephemeralContainers": [container]}}, STRATEGIC)

    made = look(name="shell", image="busybox:1", targetContainerName="c")
    (container,) = made["spec"]["ephemeralContainers"]
    assert container["imagePullPolicy"] == "IfNotPresent" and made["metadata"]["generation"] == 2
    for words, asked in (
        ('existing ephemeral containers "shell" may not be changed', {"name": "shell", "image": "other"}),
        (r'spec.ephemeralContainers\[0\].name: Duplicate value: "c"', {"name": "c", "image": "i"}),
        ('targetContainerName: Not found: "no"', {"name": "s", "image": "i", "targetContainerName": "no"}),
        ("ports: Forbidden: cannot be set for an Ephemeral Container",
         {"name": "s", "image": "i", "ports": [{"containerPort": 80}]}),
    ):  # fmt: skip
        with pytest.raises(Invalid, match=words):
            look(**asked)
    with pytest.raises(Invalid, match='existing ephemeral containers "shell" may not be removed'):
        world.patch(f"{path}/ephemeralcontainers", {"spec": {"ephemeralContainers": None}})


@pytest.mark.parametrize("door", ["exec", "attach", "portforward", "proxy"])
def test_nothing_runs_in_a_pod_and_the_answer_says_so(server: LocalCluster, namespace: str, door: str) -> None:
    assert server.ask("POST", f"/api/v1/namespaces/{namespace}/pods/p/{door}", command="ls").code == 404
    server.create(f"/api/v1/namespaces/{namespace}/pods", pod("p"))
    reply = server.ask("POST", f"/api/v1/namespaces/{namespace}/pods/p/{door}", command="ls")
    assert reply.code == 400 and 'pod "p" is simulated: nothing runs in its containers' in reply.json["message"]


def test_a_log_is_what_the_annotation_of_the_pod_says(server: LocalCluster, namespace: str) -> None:
    body = pod("p")
    body["metadata"]["annotations"] = {"simulation.phalanx.dev/log": "one\ntwo\nthree\n"}
    server.create(f"/api/v1/namespaces/{namespace}/pods", body)
    path = f"/api/v1/namespaces/{namespace}/pods/p/log"
    assert server.ask("GET", path).body == b"one\ntwo\nthree\n"
    assert server.ask("GET", path, tailLines=1).body == b"three\n"
    assert server.ask("GET", path, tailLines=0).body == b""
    assert server.ask("GET", path, limitBytes=5).body == b"one\nt"
    stamped = server.ask("GET", path, tailLines=1, timestamps="true").body.decode()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z three\n", stamped)


@pytest.mark.parametrize("end", ["succeeds", "is deleted", "has ended"])
def test_a_followed_log_ends_with_the_pod(server: LocalCluster, namespace: str, end: str) -> None:
    """`kubectl logs -f` is how scripts wait for a pod."""
    pods = f"/api/v1/namespaces/{namespace}/pods"
    body = pod("p")
    body["metadata"]["annotations"] = {"simulation.phalanx.dev/log": "one\n"}
    server.create(pods, body)
    done = {"status": {"phase": "Succeeded"}}
    if end == "has ended":
        server.patch(f"{pods}/p/status", done)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(server.ask, "GET", f"{pods}/p/log", follow="true")
        if end != "has ended":
            server.create(pods, pod("other"))
            server.delete(f"{pods}/other", gracePeriodSeconds="0")
            with pytest.raises(TimeoutError):
                answer.result(0.3)
        if end == "is deleted":
            server.delete(f"{pods}/p", gracePeriodSeconds="0")
        elif end == "succeeds":
            server.patch(f"{pods}/p/status", done)
        assert answer.result(30).body == b"one\n"


@pytest.mark.parametrize(
    ("option", "value", "code"),
    [
        ("tailLines", "-1", 422),
        ("limitBytes", "0", 422),
        ("sinceSeconds", "0", 422),
        ("sinceSeconds", "nan", 400),
        ("sinceTime", "abc", 400),
    ],
)
def test_numbers_of_the_query_of_a_log_are_checked(
    server: LocalCluster, namespace: str, option: str, value: str, code: int
) -> None:
    server.create(f"/api/v1/namespaces/{namespace}/pods", pod("p"))
    reply = server.ask("GET", f"/api/v1/namespaces/{namespace}/pods/p/log", **{option: value})
    assert reply.code == code, reply.json
    assert code == 400 or f"{option}: Invalid value: {value}: must be greater than" in reply.json["message"]


@pytest.mark.parametrize("ports", ["9" * 5000, "²", "80,x", "0"])
def test_any_text_may_stand_for_the_ports_to_forward(server: LocalCluster, namespace: str, ports: str) -> None:
    server.create(f"/api/v1/namespaces/{namespace}/pods", pod("p"))
    reply = server.ask("POST", f"/api/v1/namespaces/{namespace}/pods/p/portforward", ports=ports)
    assert reply.code == 400, reply.json


@pytest.mark.parametrize("option", ["limit", "timeoutSeconds"])
@pytest.mark.parametrize("watch", ["true", "false"])
def test_numbers_of_lists_and_watches_are_checked(server: LocalCluster, option: str, watch: str) -> None:
    reply = server.ask("GET", "/api/v1/pods", **{option: "many", "watch": watch})
    assert reply.code == 400 and "many" in reply.json["message"]
