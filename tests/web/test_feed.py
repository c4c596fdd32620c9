"""The live feed: a snapshot, changes after it, resuming, and what is never in it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from phalanx.engine.engine import Engine
from phalanx.engine.events import PodChanged
from phalanx.serve.queries.diagnostics import Diagnostics
from phalanx.serve.queries.engine_view import EngineReader
from phalanx.serve.scheduler import SchedulerService
from phalanx.testing.builders import pod
from phalanx.web.feed import KEPT_CHANGES
from support.dashboard import RACK, Watched, create
from support.manifests import gang


def placed(name: str, pods: int):
    key = f"podgroup/default/{name}"
    return lambda change: (change.get("groups") or {}).get(key, {}).get("placed") == pods


def remove(cluster: Watched, name: str, pods: int) -> None:
    for number in range(pods):
        cluster.delete(f"/api/v1/namespaces/default/pods/{name}-{number}")
    cluster.delete(f"/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups/{name}")


def test_a_gang_that_arrives_is_seen_without_asking_again(watched: Watched) -> None:
    browser = watched.browser()
    snapshot = browser.get("/api/snapshot")
    assert len(snapshot["nodes"]) == 16
    assert snapshot["keys"] == ["topology.phalanx.dev/block", RACK]
    assert snapshot["resources"][0] == "nvidia.com/gpu"
    stream = browser.follow(snapshot["id"])
    create(watched, gang("seen", 4, gpus=8, topology=RACK))
    nodes: dict[str, list] = {}

    def done(change) -> bool:
        nodes.update(change.get("nodes") or {})
        return placed("seen", 4)(change)

    stream.until(done)
    while sum("podgroup/default/seen" in row[6] for row in nodes.values()) < 4:
        nodes.update(stream.next().get("nodes") or {})
    holding = [row for row in nodes.values() if "podgroup/default/seen" in row[6]]
    assert len({row[1][1] for row in holding}) == 1  # one rack
    assert all(row[3][0] == 8 for row in holding)  # eight GPUs in use on each
    stream.close()
    remove(watched, "seen", 4)


def test_a_page_that_lost_its_connection_gets_exactly_what_it_missed(watched: Watched) -> None:
    browser = watched.browser()
    start = browser.get("/api/snapshot")["id"]
    open_page = browser.follow(start)
    create(watched, gang("missed", 2, gpus=8))
    open_page.until(placed("missed", 2))
    again = browser.follow(start)
    again.until(placed("missed", 2))
    assert again.last == open_page.last
    open_page.close()
    again.close()
    remove(watched, "missed", 2)


@pytest.mark.parametrize("after", ["", "other-5", "nonsense", "EPOCH-999999", "EPOCH--1"])
def test_a_page_that_fell_behind_starts_over(watched: Watched, after: str) -> None:
    browser = watched.browser()
    epoch = browser.get("/api/snapshot")["id"].partition("-")[0]
    assert browser.follow(after.replace("EPOCH", epoch)).next() == {"event": "reset"}


def test_the_ring_of_changes_is_bounded(watched: Watched) -> None:
    feed = watched.dashboard._feed

    async def flood() -> int:
        for number in range(KEPT_CHANGES + 50):
            await feed._publish({"sample": {"t": number}})
        return len(feed._ring)

    first = watched.browser().get("/api/snapshot")["id"]
    assert watched.call(flood()) == KEPT_CHANGES
    assert watched.browser().follow(first).next() == {"event": "reset"}


def test_a_node_that_comes_and_goes_is_reported(watched: Watched) -> None:
    browser = watched.browser()
    stream = browser.follow(browser.get("/api/snapshot")["id"])
    status = {"allocatable": {"cpu": "4", "pods": "10"}}
    labels = {RACK: "rack-0", "topology.phalanx.dev/block": "block-0"}
    watched.create(
        "/api/v1/nodes",
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "guest", "labels": labels}, "status": status},
    )
    assert stream.until(lambda change: "guest" in (change.get("nodes") or {}))["nodes"]["guest"][1] == [
        "block-0",
        "rack-0",
    ]
    watched.delete("/api/v1/nodes/guest")
    assert stream.until(lambda change: "guest" in (change.get("nodes") or {}))["nodes"]["guest"] is None
    stream.close()


def test_nothing_of_containers_is_ever_sent(watched: Watched) -> None:
    create(watched, gang("secretive", 20, gpus=8))  # more than there is room for: it waits
    browser = watched.browser()
    stream = browser.follow(browser.get("/api/snapshot")["id"])
    key = "podgroup/default/secretive"
    if not any(root["key"] == key for root in browser.get("/api/snapshot")["queue"]["roots"]):
        stream.until(lambda change: any(root["key"] == key for root in (change.get("queue") or {}).get("roots", ())))
    said = [json.dumps(browser.get("/api/snapshot"))]
    for path in ("members", "why", "plan", "manifest", "events"):
        said.append(json.dumps(browser.get(f"/api/{path}?key={key}")))
    said.append(json.dumps(browser.get("/api/why?key=pod/default/secretive-0")))
    said.append(json.dumps(browser.get("/api/node?name=node-00000")))
    for text in said:
        assert "hunter2" not in text and "PASSWORD" not in text
    assert watched.token not in "".join(said)
    stream.close()
    remove(watched, "secretive", 20)


def test_only_what_is_asked_for_in_the_right_way_is_answered(watched: Watched) -> None:
    browser = watched.browser()
    assert browser.ask("GET", "/api/node?name=nobody")[0] == 404
    assert browser.ask("GET", "/api/members?key=podgroup/default/nobody")[0] == 404
    assert browser.ask("GET", "/api/why?key=secret/default/token")[0] == 400
    assert browser.ask("GET", "/api/events?key=x")[0] == 400
    assert browser.ask("POST", "/api/snapshot", {})[0] == 405
    assert browser.ask("GET", "/api/whatif")[0] == 405
    assert browser.ask("GET", "/nothing.js")[0] == 404


def test_stopping_the_cluster_ends_open_streams(tmp_path: Path) -> None:
    cluster = Watched(tmp_path, nodes=1)
    cluster.start()
    browser = cluster.browser()
    stream = browser.follow(browser.get("/api/snapshot")["id"])
    assert stream.code == 200
    cluster.stop()  # would wait for the stream otherwise
    with pytest.raises(AssertionError, match="ended"):
        stream.until(lambda change: False)


def test_pages_go_on_with_a_scheduler_that_was_made_again(tmp_path: Path) -> None:
    cluster = Watched(tmp_path, nodes=2)
    cluster.start()
    try:
        browser = cluster.browser()
        stream = browser.follow(browser.get("/api/snapshot")["id"])

        async def again() -> None:
            server = cluster.cluster.server
            client = server.client("phalanx-scheduler")
            gates = server.context.gates
            service = SchedulerService(client, Engine(), gates, server.context.clock, random.Random(0))
            cluster.dashboard.follow(server, service, Diagnostics(service.engine, client, gates, lambda: True))

        cluster.call(again())
        stream.until(lambda change: change == {"event": "reset"})
        assert browser.get("/api/snapshot")["nodes"] == []  # of an engine that has not read the cluster yet
    finally:
        cluster.stop()


def test_waiting_units_are_listed_in_the_order_in_which_they_will_be_tried() -> None:
    engine = Engine()
    for number, priority in enumerate((0, 5, 5, 9)):
        built = pod(f"p{number}").ns("default").created(100 - number).uid(str(number))
        built.spec["priority"] = priority
        engine.apply(PodChanged(built.build()))
    engine.step(200.0, 100)  # there is no node: all are tried and sleep
    queue = EngineReader(engine, lambda: 200.0).queue()
    assert [root["name"] for root in queue["roots"]] == ["p3", "p2", "p1", "p0"]
    assert (queue["total"], queue["pods"], queue["counts"]) == (4, 4, {"waiting": 4})
    assert queue["oldest"] == 103.0  # since the first of them asked
    assert all(
        "no nodes available" in root["message"] or "nodes are available" in root["message"] for root in queue["roots"]
    )
