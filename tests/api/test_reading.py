"""get and list as clients see them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phalanx.base.errors import Expired
from phalanx.local.api.handler import Api
from support.api_world import World
from support.local_cluster import LocalCluster
from support.manifests import pod
from support.raw_http import PARTIAL, TABLE

PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"


@pytest.fixture
def pods(server: LocalCluster, namespace: str) -> str:
    """Five pods p0 … p4; the even ones are on a node."""
    path = f"/api/v1/namespaces/{namespace}/pods"
    for number in range(5):
        even = number % 2 == 0
        labels = {"parity": "even" if even else "odd"}
        server.create(path, pod(f"p{number}", labels=labels, **({"nodeName": "n1"} if even else {})))
    return path


def names(listed: dict[str, Any]) -> list[str]:
    return [item["metadata"]["name"] for item in listed["items"]]


def test_an_object_reads_back_as_it_was_answered_when_created(server: LocalCluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    created = server.create(path, pod("a"))
    assert server.get(f"{path}/a") == created
    assert created["apiVersion"] == "v1" and created["kind"] == "Pod"


def test_a_list_has_every_object_once_in_order_of_names(server: LocalCluster, pods: str) -> None:
    listed = server.get(pods)
    assert listed["kind"] == "PodList" and listed["apiVersion"] == "v1"
    assert names(listed) == ["p0", "p1", "p2", "p3", "p4"]
    assert int(listed["metadata"]["resourceVersion"]) >= max(
        int(item["metadata"]["resourceVersion"]) for item in listed["items"]
    )


def test_items_of_built_in_lists_do_not_repeat_their_kind(server: LocalCluster, namespace: str, pods: str) -> None:
    """As Go writes its types; clients compare what they listed with what they made. Custom resources repeat it."""
    listed = server.get(pods)["items"]
    assert all(not {"apiVersion", "kind"} & found.keys() and found["spec"] for found in listed)
    assert server.get(f"{pods}/p0")["kind"] == "Pod"
    deleted = server.ask("DELETE", pods).json["items"]
    assert len(deleted) == len(listed) and not any("kind" in found for found in deleted)
    container = {"name": "c", "image": "i"}
    job = {"parallelism": 1, "completions": 1, "template": {"spec": {"containers": [container]}}}
    child = {"name": "j", "template": {"spec": job}}
    body = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "s"},
        "spec": {"replicatedJobs": [child]},
    }
    sets = f"/apis/jobset.x-k8s.io/v1alpha2/namespaces/{namespace}/jobsets"
    server.create(sets, body)
    assert server.get(sets)["items"][0]["kind"] == "JobSet"


def test_items_of_lists_of_custom_resources_say_what_they_are(server: LocalCluster) -> None:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    definition = {
        "metadata": {"name": "listeds.example.org"},
        "spec": {
            "group": "example.org",
            "scope": "Cluster",
            "names": {"plural": "listeds", "kind": "Listed"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }
    server.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
    server.create("/apis/example.org/v1/listeds", {"metadata": {"name": "a"}})
    (item,) = server.get("/apis/example.org/v1/listeds")["items"]
    assert (item["apiVersion"], item["kind"]) == ("example.org/v1", "Listed")


def test_an_empty_list_is_a_list(server: LocalCluster, namespace: str) -> None:
    assert server.get(f"/api/v1/namespaces/{namespace}/pods")["items"] == []


def test_a_list_over_all_namespaces_contains_those_of_one(server: LocalCluster, pods: str) -> None:
    uids = {item["metadata"]["uid"] for item in server.get("/api/v1/pods")["items"]}
    assert {item["metadata"]["uid"] for item in server.get(pods)["items"]} <= uids


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("parity=even", ["p0", "p2", "p4"]),
        ("parity!=even", ["p1", "p3"]),
        ("parity in (odd,none)", ["p1", "p3"]),
        ("!parity", []),
        ("parity,parity notin (odd)", ["p0", "p2", "p4"]),
    ],
)
def test_label_selectors(server: LocalCluster, pods: str, selector: str, expected: list[str]) -> None:
    assert names(server.get(pods, labelSelector=selector)) == expected


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        ("spec.nodeName=n1", ["p0", "p2", "p4"]),
        ("spec.nodeName!=n1", ["p1", "p3"]),
        ("metadata.name=p3", ["p3"]),
        ("metadata.name!=p3,spec.nodeName=", ["p1"]),
        ("status.phase=Running", []),
        ("metadata.namespace=elsewhere", []),
    ],
)
def test_field_selectors(server: LocalCluster, pods: str, selector: str, expected: list[str]) -> None:
    assert names(server.get(pods, fieldSelector=selector)) == expected


def test_an_unknown_field_label_is_refused_by_name(server: LocalCluster, pods: str) -> None:
    reply = server.ask("GET", pods, fieldSelector="spec.colour=red")
    assert reply.code == 400
    assert "field label not supported" in reply.json["message"] and "spec.colour" in reply.json["message"]


def test_a_broken_label_selector_is_refused(server: LocalCluster, pods: str) -> None:
    reply = server.ask("GET", pods, labelSelector="a in (")
    assert (reply.code, reply.json["reason"]) == (400, "BadRequest")


def test_pages_together_are_the_list_at_the_first_pages_revision(server: LocalCluster, pods: str) -> None:
    first = server.get(pods, limit=2)
    assert names(first) == ["p0", "p1"] and first["metadata"]["remainingItemCount"] == 3
    server.create(pods, pod("p11"))
    server.delete(f"{pods}/p3")
    second = server.get(pods, limit=2, continue_=first["metadata"]["continue"])
    third = server.get(pods, limit=2, continue_=second["metadata"]["continue"])
    assert names(second) + names(third) == ["p2", "p3", "p4"]
    assert "continue" not in third["metadata"]
    revisions = {page["metadata"]["resourceVersion"] for page in (first, second, third)}
    assert len(revisions) == 1


def test_pages_with_a_selector_do_not_guess_how_many_remain(server: LocalCluster, pods: str) -> None:
    page = server.get(pods, limit=1, labelSelector="parity=even")
    assert names(page) == ["p0"] and "remainingItemCount" not in page["metadata"]
    rest = server.get(pods, limit=5, labelSelector="parity=even", continue_=page["metadata"]["continue"])
    assert names(rest) == ["p2", "p4"]


def test_a_continue_token_is_good_for_a_while(world: World) -> None:
    for name in ("a", "b", "c"):
        world.create("/api/v1/namespaces/ns/configmaps", {"metadata": {"name": name}})
    api = Api(world.ctx, world.writer)

    def page(token: str = "") -> Any:
        query = {"limit": "1", **({"continue": token} if token else {})}
        request = world.request("list", "/api/v1/namespaces/ns/configmaps", **query)
        return json.loads(world.run(api.handle(request)).whole())

    token = page()["metadata"]["continue"]
    world.clock.advance(200)
    later = page(token)["metadata"]["continue"]
    assert page(token)["items"][0]["metadata"]["name"] == "b"
    world.clock.advance(200)
    with pytest.raises(Expired) as announced:
        page(later)  # the time runs from the first page
    fresh = announced.value.status()["metadata"]["continue"]  # type: ignore[index]
    assert page(fresh)["items"][0]["metadata"]["name"] == "c"


def test_a_made_up_continue_token_is_refused(server: LocalCluster, pods: str) -> None:
    assert server.ask("GET", pods, limit=1, continue_="nonsense").code == 400


def test_an_exact_revision_shows_the_past(server: LocalCluster, pods: str) -> None:
    before = server.get(pods)["metadata"]["resourceVersion"]
    server.delete(f"{pods}/p1")
    assert names(server.get(pods)) == ["p0", "p2", "p3", "p4"]
    past = server.get(pods, resourceVersion=before, resourceVersionMatch="Exact")
    assert len(past["items"]) == 5 and past["metadata"]["resourceVersion"] == before
    assert len(server.get(pods, resourceVersion=before, resourceVersionMatch="NotOlderThan")["items"]) == 4
    assert len(server.get(pods, resourceVersion="0")["items"]) == 4
    whole = server.get(pods, resourceVersion="0", limit=2)
    assert len(whole["items"]) == 4 and "continue" not in whole["metadata"]


@pytest.mark.parametrize(
    "query",
    [
        {"resourceVersionMatch": "Exact"},
        {"resourceVersion": "0", "resourceVersionMatch": "Exact"},
        {"resourceVersion": "1", "resourceVersionMatch": "Roughly"},
    ],
)
def test_senseless_revision_rules_are_refused(server: LocalCluster, pods: str, query: dict[str, str]) -> None:
    reply = server.ask("GET", pods, **query)
    assert (reply.code, reply.json["reason"]) == (422, "Invalid")


def test_a_revision_that_is_not_reached_yet_is_answered_with_try_again(server: LocalCluster, pods: str) -> None:
    reply = server.ask("GET", pods, resourceVersion="999999999")
    assert reply.code == 504 and reply.json["details"]["causes"][0]["reason"] == "ResourceVersionTooLarge"


def test_a_revision_that_is_no_number_is_refused(server: LocalCluster, pods: str) -> None:
    assert server.ask("GET", pods, resourceVersion="yesterday").code == 400


def test_a_missing_object_is_named(server: LocalCluster, namespace: str) -> None:
    reply = server.ask("GET", f"/api/v1/namespaces/{namespace}/pods/nope")
    assert reply.code == 404
    status = reply.json
    assert status["kind"] == "Status" and status["status"] == "Failure" and status["code"] == 404
    assert status["message"] == 'pods "nope" not found' and status["reason"] == "NotFound"
    assert status["details"] == {"name": "nope", "kind": "pods"}
    missing = server.ask("GET", f"/apis/apps/v1/namespaces/{namespace}/deployments/nope").json
    assert missing["message"] == 'deployments.apps "nope" not found' and missing["details"]["group"] == "apps"


def test_a_table_has_the_printer_columns_and_the_metadata(server: LocalCluster, pods: str) -> None:
    table = server.get(pods, accept=f"{TABLE},application/json")
    assert table["kind"] == "Table" and table["apiVersion"] == "meta.k8s.io/v1"
    columns = [column["name"] for column in table["columnDefinitions"]]
    assert columns[0] == "Name" and {"Ready", "Status", "Restarts", "Age"} <= set(columns)
    assert [row["cells"][0] for row in table["rows"]] == ["p0", "p1", "p2", "p3", "p4"]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    assert "spec" not in table["rows"][0]["object"]
    assert table["metadata"]["resourceVersion"]


def test_a_table_may_hold_whole_objects_or_none(server: LocalCluster, pods: str) -> None:
    whole = server.get(f"{pods}/p0", accept=TABLE, includeObject="Object")
    assert whole["rows"][0]["object"]["spec"]["nodeName"] == "n1"
    assert "object" not in server.get(f"{pods}/p0", accept=TABLE, includeObject="None")["rows"][0]
    assert server.ask("GET", pods, accept=TABLE, includeObject="Some").code == 400


def test_partial_metadata(server: LocalCluster, pods: str) -> None:
    one = server.get(f"{pods}/p0", accept=PARTIAL)
    assert one["kind"] == "PartialObjectMetadata" and one["metadata"]["name"] == "p0" and "spec" not in one
    several = server.get(pods, accept=PARTIAL_LIST)
    assert several["kind"] == "PartialObjectMetadataList" and len(several["items"]) == 5


def test_an_answer_that_cannot_be_given_is_406(server: LocalCluster, pods: str) -> None:
    assert server.ask("GET", pods, accept="application/x-protobuf").code == 406
    assert server.ask("GET", pods, accept="application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1").code == 406
    assert server.ask("GET", pods, accept="application/vnd.kubernetes.protobuf,application/json").code == 200
    assert server.ask("GET", pods, accept="text/html,*/*").code == 200


def test_writes_answer_in_the_form_that_was_asked_for(server: LocalCluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    created = server.create(path, pod("a"), accept=PARTIAL)
    assert created["kind"] == "PartialObjectMetadata" and created["metadata"]["uid"] and "spec" not in created
    assert server.ask("POST", path, pod("b"), accept="text/html").code == 406
    assert server.ask("GET", f"{path}/b").code == 404


def test_yaml_is_answered_when_asked_for(server: LocalCluster, pods: str) -> None:
    import yaml

    reply = server.ask("GET", f"{pods}/p0", accept="application/yaml")
    assert reply.headers["content-type"] == "application/yaml"
    assert yaml.safe_load(reply.body)["metadata"]["name"] == "p0"


def test_a_workload_reads_in_every_version_it_is_served_in(server: LocalCluster, namespace: str) -> None:
    root = "/apis/scheduling.k8s.io"
    body = {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "w"},
        "spec": {"podGroupTemplates": [{"name": "g", "schedulingPolicy": {"gang": {"minCount": 3}}}]},
    }
    server.create(f"{root}/v1beta1/namespaces/{namespace}/workloads", body)
    for version in ("v1beta1", "v1alpha3", "v1alpha1"):
        seen = server.get(f"{root}/{version}/namespaces/{namespace}/workloads/w")
        assert seen["apiVersion"] == f"scheduling.k8s.io/{version}" and seen["kind"] == "Workload"
    listed = server.get(f"{root}/v1alpha1/namespaces/{namespace}/workloads")
    assert listed["items"][0]["spec"]["podGroups"][0]["name"] == "g" and "kind" not in listed["items"][0]


def test_the_scale_of_a_deployment(server: LocalCluster, namespace: str) -> None:
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    labels = {"app": "d"}
    template = {"metadata": {"labels": labels}, "spec": pod("x")["spec"]}
    spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
    server.create(path, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec})
    scale = server.get(f"{path}/d/scale")
    assert scale["kind"] == "Scale" and scale["apiVersion"] == "autoscaling/v1"
    assert scale["spec"] == {"replicas": 3} and scale["status"]["selector"] == "app=d"


def test_a_status_reads_like_its_object(server: LocalCluster, pods: str) -> None:
    assert server.get(f"{pods}/p0/status") == server.get(f"{pods}/p0")


def test_long_lists_are_whole_in_every_form(server: LocalCluster, namespace: str) -> None:
    path = f"/api/v1/namespaces/{namespace}/secrets"
    expected = [f"c{number:03}" for number in range(300)]
    for name in expected:
        server.create(path, {"metadata": {"name": name}})
    assert names(server.get(path)) == expected
    assert names(server.get(path, accept=PARTIAL_LIST)) == expected
    assert [row["cells"][0] for row in server.get(path, accept=TABLE)["rows"]] == expected
    with server.watch(path) as watch:
        assert [obj["metadata"]["name"] for _, obj in watch.take(300)] == expected


def test_a_flag_of_the_query_is_on_unless_it_says_0_or_false(server: LocalCluster, pods: str) -> None:
    for text in ("0", "False"):
        assert server.ask("GET", pods, watch=text).json["kind"] == "PodList"
    for text in ("1", "t", "yes", ""):
        found = server.ask("GET", pods, watch=text, allowWatchBookmarks=text, timeoutSeconds=1)
        assert found.code == 200 and all(json.loads(line)["type"] for line in found.body.splitlines())


def test_a_grace_period_of_the_query_is_a_number(server: LocalCluster, pods: str) -> None:
    refused = server.ask("DELETE", f"{pods}/none", gracePeriodSeconds="abc")
    assert refused.code == 400 and refused.json["message"] == 'strconv.ParseInt: parsing "abc": invalid syntax'


def test_numbers_in_the_query_are_read_as_go_reads_them(server: LocalCluster, pods: str) -> None:
    everything = server.get(pods)["items"]
    assert server.get(pods, limit=-1)["items"] == everything  # no limit
    for text, problem in (("ten", "invalid syntax"), ("1_0", "invalid syntax"), ("9" * 30, "value out of range")):
        refused = server.ask("GET", pods, limit=text)
        assert refused.code == 400
        assert refused.json["message"] == f'strconv.ParseInt: parsing "{text}": {problem}'
    for text, problem in (
        ("ten", 'time: invalid duration "ten"'),
        ("10", 'time: missing unit in duration "10"'),
        ("1h10x", 'time: unknown unit "x" in duration "1h10x"'),
    ):
        refused = server.ask("GET", pods, timeout=text)
        assert refused.json["message"] == f"invalid timeout specified in the request URL - {problem}"


def test_the_checks_are_metrics_too(server: LocalCluster) -> None:
    server.ask("GET", "/readyz")
    text = server.ask("GET", "/metrics/slis").body.decode()
    assert 'kubernetes_healthcheck{name="started",type="readyz"} 1' in text
    assert 'kubernetes_healthchecks_total{name="started",status="success",type="readyz"}' in text
