"""watch as clients see it."""

from __future__ import annotations

from typing import Any

import pytest

from support.local_cluster import LocalCluster
from support.manifests import pod
from support.raw_http import PARTIAL, TABLE, raw, request


@pytest.fixture
def path(namespace: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods"


def summary(events: list[tuple[str, Any]]) -> list[tuple[str, str]]:
    return [(kind, obj["metadata"]["name"]) for kind, obj in events]


def test_changes_after_a_list_arrive_once_and_in_order(server: LocalCluster, path: str) -> None:
    server.create(path, pod("before"))
    since = server.get(path)["metadata"]["resourceVersion"]
    with server.watch(path, resourceVersion=since) as watch:
        server.create(path, pod("a", labels={}))
        server.patch(f"{path}/a", {"metadata": {"labels": {"x": "y"}}})
        server.delete(f"{path}/a")
        events = watch.take(4)
    assert summary(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    assert events[2][1]["metadata"]["deletionTimestamp"], "as in kube-apiserver, before the pod is removed"
    revisions = [int(obj["metadata"]["resourceVersion"]) for _, obj in events]
    assert revisions == sorted(set(revisions)) and revisions[0] > int(since)
    assert events[3][1]["metadata"]["labels"] == {"x": "y"}


def test_a_watch_resumes_from_any_event_it_saw(server: LocalCluster, path: str) -> None:
    since = server.get(path)["metadata"]["resourceVersion"]
    for name in "abc":
        server.create(path, pod(name))
    with server.watch(path, resourceVersion=since) as watch:
        first = watch.take(1)[0][1]["metadata"]["resourceVersion"]
    with server.watch(path, resourceVersion=first) as watch:
        assert summary(watch.take(2)) == [("ADDED", "b"), ("ADDED", "c")]


@pytest.mark.parametrize("query", [{}, {"resourceVersion": "0"}])
def test_without_a_revision_the_present_comes_first(server: LocalCluster, path: str, query: dict[str, str]) -> None:
    server.create(path, pod("a", labels={}))
    with server.watch(path, **query) as watch:
        assert summary(watch.take(1)) == [("ADDED", "a")]
        server.create(path, pod("b"))
        assert summary(watch.take(1)) == [("ADDED", "b")]


def test_a_streamed_list_ends_with_an_annotated_bookmark(server: LocalCluster, path: str) -> None:
    server.create(path, pod("a", labels={}))
    server.create(path, pod("b"))
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    with server.watch(path, **query) as watch:
        events = watch.take(3)
        assert summary(events[:2]) == [("ADDED", "a"), ("ADDED", "b")]
        kind, mark = events[2]
        assert kind == "BOOKMARK" and mark["kind"] == "Pod"
        assert mark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    listed = server.get(path)
    assert int(mark["metadata"]["resourceVersion"]) <= int(listed["metadata"]["resourceVersion"])
    with server.watch(path, resourceVersion=mark["metadata"]["resourceVersion"]) as watch:
        server.create(path, pod("c"))
        assert summary(watch.take(1)) == [("ADDED", "c")]


HEAD = 'ListOptions.meta.k8s.io "" is invalid: '


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (
            {"watch": "true", "sendInitialEvents": "true"},
            "resourceVersionMatch: Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan",
        ),
        (
            {"watch": "true", "resourceVersionMatch": "Exact"},
            "[resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch unless sendInitialEvents is "
            'provided, resourceVersionMatch: Unsupported value: "Exact": supported values: "NotOlderThan"]',
        ),
        ({"sendInitialEvents": "true"}, "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for list"),
        (
            {"resourceVersionMatch": "Exact", "resourceVersion": "0"},
            'resourceVersionMatch: Forbidden: resourceVersionMatch "exact" is forbidden for resourceVersion "0"',
        ),
    ],
)
def test_errors_about_revisions_read_as_in_kubernetes(
    server: LocalCluster, path: str, query: dict[str, str], message: str
) -> None:
    reply = server.ask("GET", path, **query)
    assert (reply.code, reply.json["reason"], reply.json["message"]) == (422, "Invalid", HEAD + message)


def test_a_streamed_list_without_bookmarks_has_no_mark(server: LocalCluster, path: str) -> None:
    server.create(path, pod("a", labels={}))
    with server.watch(path, sendInitialEvents="true", resourceVersionMatch="NotOlderThan") as watch:
        assert summary(watch.take(1)) == [("ADDED", "a")]
        server.create(path, pod("b"))
        assert summary(watch.take(1)) == [("ADDED", "b")]


def test_no_initial_events_when_they_are_not_wanted(server: LocalCluster, path: str) -> None:
    server.create(path, pod("a", labels={}))
    with server.watch(path, sendInitialEvents="false", resourceVersionMatch="NotOlderThan") as watch:
        server.create(path, pod("b"))
        assert summary(watch.take(1)) == [("ADDED", "b")]


def test_entering_and_leaving_a_label_selector(server: LocalCluster, path: str) -> None:
    since = server.get(path)["metadata"]["resourceVersion"]
    with server.watch(path, labelSelector="in=yes", resourceVersion=since) as watch:
        server.create(path, pod("a", labels={}))
        server.patch(f"{path}/a", {"metadata": {"labels": {"in": "yes"}}})
        server.patch(f"{path}/a", {"metadata": {"labels": {"other": "1"}}})
        left = server.patch(f"{path}/a", {"metadata": {"labels": {"in": "no"}}})
        server.create(path, pod("b"))
        server.patch(f"{path}/b", {"metadata": {"labels": {"in": "yes"}}})
        events = watch.take(4)
    assert summary(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a"), ("ADDED", "b")]
    gone = events[2][1]["metadata"]
    assert gone["labels"]["in"] == "yes"  # the last state that matched …
    assert gone["resourceVersion"] == left["metadata"]["resourceVersion"]  # … at the revision that took it away


def test_a_watch_with_a_field_selector_follows_one_object(server: LocalCluster, path: str) -> None:
    with server.watch(path, fieldSelector="metadata.name=b") as watch:
        server.create(path, pod("a", labels={}))
        server.create(path, pod("b"))
        server.delete(f"{path}/b")
        assert summary(watch.take(3)) == [("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "b")]


def test_the_old_watch_prefix_still_works(server: LocalCluster, path: str) -> None:
    server.create(path, pod("a", labels={}))
    old = path.replace("/api/v1/", "/api/v1/watch/")
    with server.watch(f"{old}/a") as watch:
        assert summary(watch.take(1)) == [("ADDED", "a")]


def test_a_table_watch_sends_its_columns_once(server: LocalCluster, path: str) -> None:
    server.create(path, pod("a", labels={}))
    since = server.get(path)["metadata"]["resourceVersion"]
    with server.watch(path, accept=TABLE, resourceVersion=since) as watch:
        server.create(path, pod("b"))
        server.create(path, pod("c"))
        first, second = watch.take(2)
    assert first[1]["kind"] == second[1]["kind"] == "Table"
    assert first[1]["columnDefinitions"] and not second[1]["columnDefinitions"]
    assert [event["rows"][0]["cells"][0] for _, event in (first, second)] == ["b", "c"]
    assert first[1]["rows"][0]["object"]["metadata"]["name"] == "b"
    for _, event in (first, second):
        assert event["metadata"] == {"resourceVersion": event["rows"][0]["object"]["metadata"]["resourceVersion"]}


def test_a_metadata_watch_sends_no_specs(server: LocalCluster, path: str) -> None:
    server.create(path, pod("a", labels={}))
    with server.watch(path, accept=PARTIAL) as watch:
        _, obj = watch.take(1)[0]
    assert obj["kind"] == "PartialObjectMetadata" and "spec" not in obj


def test_a_watch_ends_when_its_time_is_up(server: LocalCluster, path: str) -> None:
    server.create(path, pod("a", labels={}))
    with server.watch(path, timeoutSeconds=1) as watch:
        assert summary(watch.rest()) == [("ADDED", "a")]


def test_a_revision_beyond_the_window_is_expired(server: LocalCluster, path: str) -> None:
    store: Any = server.cluster.server.context.store
    floor = store._window.floor
    store._window.floor = store.revision  # as if everything so far had been compacted
    try:
        with server.watch(path, resourceVersion="1") as watch:
            kind, status = watch.take(1)[0]
            assert kind == "ERROR" and watch.next() is None
        assert (status["code"], status["reason"]) == (410, "Expired")
        reply = server.ask("GET", path, resourceVersion="1", resourceVersionMatch="Exact")
        assert (reply.code, reply.json["reason"]) == (410, "Expired")
    finally:
        store._window.floor = floor


def test_an_expired_page_says_how_to_go_on(server: LocalCluster, path: str) -> None:
    for name in "abc":
        server.create(path, pod(name))
    token = server.get(path, limit=1)["metadata"]["continue"]
    server.delete(f"{path}/b")
    store: Any = server.cluster.server.context.store
    floor = store._window.floor
    store._window.floor = store.revision
    try:
        reply = server.ask("GET", path, limit=1, continue_=token)
        assert (reply.code, reply.json["reason"]) == (410, "Expired")
        rest = server.get(path, continue_=reply.json["metadata"]["continue"])
        assert [item["metadata"]["name"] for item in rest["items"]] == ["c"]
    finally:
        store._window.floor = floor


def test_quiet_watchers_get_bookmarks_that_move_on(
    server: LocalCluster, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phalanx.local.api.watch.BOOKMARK_EVERY", 0.05)
    since = server.get(path)["metadata"]["resourceVersion"]
    with server.watch(path, resourceVersion=since, allowWatchBookmarks="true") as watch:
        elsewhere = server.create("/api/v1/namespaces/default/configmaps", {"metadata": {"generateName": "c-"}})
        kind, mark = watch.take(1)[0]
        while int(mark["metadata"]["resourceVersion"]) < int(elsewhere["metadata"]["resourceVersion"]):
            kind, mark = watch.take(1)[0]
    assert kind == "BOOKMARK" and mark["kind"] == "Pod" and "name" not in mark["metadata"]


def test_large_objects_are_sent_in_pieces_and_arrive_whole(server: LocalCluster, namespace: str) -> None:
    """What is sent at once is kept for each connection whose client does not read."""
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    sizes = {"a": 10, "b": 500_000, "c": 20, "d": 70_000, "e": 60_000, "f": 30}
    for name, size in sizes.items():
        server.create(
            path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"x": "y" * size}}
        )
    names = [*sizes, "kube-root-ca.crt"]
    with server.watch(path) as watch:
        events = [obj for _, obj in watch.take(len(names))]
        assert {each["metadata"]["name"]: len(each["data"]["x"]) for each in events if "x" in each["data"]} == sizes
        server.patch(f"{path}/a", {"data": {"x": "z" * 300_000}})
        assert len(watch.take(1)[0][1]["data"]["x"]) == 300_000
    sock = raw(server)
    sock.sendall(request(server, f"GET {path}?watch=1&timeoutSeconds=1 HTTP/1.1"))
    answer = sock.makefile("rb")
    while answer.readline() != b"\r\n":
        pass
    chunks = []
    while size := int(answer.readline(), 16):
        chunks.append(size)
        answer.read(size + 2)
    sock.close()
    assert sum(chunks) > 900_000 and max(chunks) <= 64 << 10
