"""Sizes of objects, a disk that runs full, events that expire: what the server keeps and what it refuses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.base.errors import ConfigProblem, RequestEntityTooLarge, ServiceUnavailable
from phalanx.local.api.event_expiry import EventExpiry
from phalanx.local.api.storing import OBJECT_BYTES
from phalanx.local.store.space import Space
from phalanx.local.store.store import Store
from phalanx.serve.settings import ServerSettings
from support.api_world import APPLY, CONFIGS, DEPLOYMENTS, JSON_PATCH, MERGE, STRATEGIC, World, config, deployment
from support.local_cluster import LocalCluster
from support.manual_clock import ManualClock
from support.raw_http import ALONE, raw, request

MIB = 1 << 20


ARGS = "/spec/template/spec/containers/0/args"


def web(*args: str, name: str = "web", **metadata: Any) -> dict[str, Any]:
    body = deployment(name)
    body["metadata"] |= metadata
    body["spec"]["template"]["spec"]["containers"][0]["args"] = list(args)
    return body


@pytest.mark.parametrize("how", ["create", "update", "merge", "strategic", "apply", "json patch", "copies"])
def test_no_kind_of_write_makes_an_object_larger_than_its_limit(world: World, how: str) -> None:
    big = "x" * (OBJECT_BYTES - 100)
    world.create(DEPLOYMENTS, web("x" * 900_000))
    path = f"{DEPLOYMENTS}/web"
    with pytest.raises(RequestEntityTooLarge):
        match how:
            case "create":
                world.create(DEPLOYMENTS, web(big, name="other"))
            case "update":
                world.update(path, web(big))
            case "merge" | "strategic":
                world.patch(path, {"spec": web(big)["spec"]}, MERGE if how == "merge" else STRATEGIC)
            case "apply":
                world.ask("patch", path, web(big), APPLY, fieldManager="m", force="true")
            case "json patch":
                world.patch(path, [{"op": "add", "path": f"{ARGS}/-", "value": big}], JSON_PATCH)
            case _:
                copies = [{"op": "copy", "from": f"{ARGS}/0", "path": f"{ARGS}/-"} for _ in range(50)]
                world.patch(path, copies, JSON_PATCH)
    stored = world.get(path)["spec"]["template"]["spec"]["containers"][0]
    assert [len(arg) for arg in stored["args"]] == [900_000]
    assert world.get(f"{DEPLOYMENTS}/other") is None


@pytest.mark.parametrize("containers", [4000, 12000])
def test_an_object_that_is_too_large_is_refused_before_it_is_judged(world: World, containers: int) -> None:
    """Judging thousands of containers that are never stored would keep everybody else waiting."""
    items = [{"name": f"c{n}", "image": "i"} for n in range(containers)]
    items[-1] = {"name": "NOT A NAME", "image": "i"}
    body = {"metadata": {"name": "huge"}, "spec": {"containers": items}}
    with pytest.raises(RequestEntityTooLarge, match='pods "huge" would take'):
        world.create("/api/v1/namespaces/ns/pods", body)


def test_an_object_at_its_limit_can_be_marked_for_deletion_and_emptied(world: World) -> None:
    world.create(DEPLOYMENTS, web(finalizers=["example.com/held"]))
    entry = world.store.get(("deployments.apps", "ns", "web"))
    assert entry is not None
    room = OBJECT_BYTES - len(entry.value) - 100
    world.patch(f"{DEPLOYMENTS}/web", [{"op": "add", "path": ARGS, "value": ["x" * room]}], JSON_PATCH)
    with pytest.raises(RequestEntityTooLarge):
        world.patch(f"{DEPLOYMENTS}/web", {"metadata": {"annotations": {"more": "x" * 1000}}})
    world.delete(f"{DEPLOYMENTS}/web")
    assert world.get(f"{DEPLOYMENTS}/web")["metadata"]["deletionTimestamp"]
    world.patch(f"{DEPLOYMENTS}/web", [{"op": "remove", "path": ARGS}], JSON_PATCH)
    world.patch(f"{DEPLOYMENTS}/web", {"metadata": {"finalizers": None}})
    assert world.get(f"{DEPLOYMENTS}/web") is None


EVENTS = "/api/v1/namespaces/ns/events"


def event(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "involvedObject": {"namespace": "ns"}, "reason": "Tested", "message": name}


def test_events_go_an_hour_after_their_last_change(world: World) -> None:
    expiry = EventExpiry(world.ctx)
    watcher = world.store.watch("events")
    for minute in range(120):
        if minute < 3:
            world.create(EVENTS, event(f"e{minute}"))
        if minute == 30:
            world.patch(f"{EVENTS}/e1", {"count": 2})
        world.clock.advance(60)
        world.run(expiry.sweep())
        left = {name for name in ("e0", "e1", "e2") if world.get(f"{EVENTS}/{name}")}
        if minute in (58, 62, 88, 93):
            assert left == {58: {"e0", "e1", "e2"}, 62: {"e1"}, 88: {"e1"}, 93: set()}[minute]
    changes = world.run(anext(watcher))
    assert [(change.deleted, change.entry.key[2]) for change in changes[-3:]] == [
        (True, "e0"),
        (True, "e2"),
        (True, "e1"),
    ]
    assert world.store.latest(("events", "ns", "e0")) is None


def test_events_from_before_a_restart_go_in_time_too(world: World) -> None:
    world.create(EVENTS, {**event("old"), "lastTimestamp": "2023-11-14T20:00:00Z"})
    world.create(EVENTS, {**event("young"), "lastTimestamp": "2023-11-14T22:00:00Z"})
    world.clock.advance(3000)
    after_restart = EventExpiry(world.ctx, ttl=3600)
    assert world.run(after_restart.sweep()) == 0  # both were made 50 minutes ago
    world.clock.advance(660)
    assert world.run(after_restart.sweep()) == 2
    assert world.store.list("events") == ()


def test_how_long_events_live_may_be_chosen() -> None:
    def ttl(text: str) -> float:
        return ServerSettings.of(":memory:", "127.0.0.1:0", None, event_ttl=text).event_ttl

    assert [ttl(text) for text in ("", "0", "90m", "1h30m0s", "45s")] == [3600, 0, 5400, 5400, 45]
    for wrong in ("1", "soon", "-1h", "1.5h", "h"):
        with pytest.raises(ConfigProblem, match="--event-ttl"):
            ttl(wrong)


class Disk:
    """Free room as the test says."""

    def __init__(self) -> None:
        self.free = 1 << 40


def test_short_of_room_what_grows_is_refused_and_deletions_go_on(world: World, tmp_path: Path) -> None:
    disk = Disk()
    space = Space(tmp_path / "store.db", free=lambda: disk.free, monotonic=world.clock.monotonic)
    world.store._space = space
    for name in ("a", "b"):
        world.create(CONFIGS, config(name, text="x" * 100))
    disk.free = 10 * MIB
    world.clock.advance(2)
    assert "10 MiB are free" in world.store.alarm()
    with pytest.raises(ServiceUnavailable) as refused:
        world.create(CONFIGS, config("c"))
    assert '"c" was not stored: 10 MiB are free' in refused.value.message
    assert not refused.value.retry_after, "kubectl would try ten times in silence before it says why"
    with pytest.raises(ServiceUnavailable):
        world.patch(f"{CONFIGS}/a", {"data": {"more": "text"}})
    world.patch(f"{CONFIGS}/a", {"data": {"text": "y" * 90}})  # no larger than before
    world.delete(f"{CONFIGS}/b")
    disk.free = 80 * MIB  # more than the alarm begins at, less than it ends at
    world.clock.advance(2)
    assert world.store.alarm()
    disk.free = 100 * MIB
    world.clock.advance(2)
    world.create(CONFIGS, config("c"))


def test_the_alarm_is_seen_in_readyz_metrics_and_raw_requests(
    start_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    server = start_cluster(**ALONE)
    assert server.ask("GET", "/readyz").body == b"ok"
    verbose = server.ask("GET", "/readyz", verbose="").body.decode()
    assert "[+]ping ok\n" in verbose and "[+]store-space ok\n" in verbose and verbose.endswith("readyz check passed\n")
    disk = Disk()
    disk.free = 3 * MIB
    store: Any = server.cluster.server._store
    store._space = Space(tmp_path / "store.db", free=lambda: disk.free)
    reply = server.ask("GET", "/readyz", verbose="")
    assert reply.code == 500 and b"[-]store-space failed: 3 MiB are free" in reply.body
    assert b"store-space" in server.ask("GET", "/readyz").body
    assert server.ask("GET", "/readyz/store-space").code == 500
    assert server.ask("GET", "/readyz/ping").code == 200
    assert server.ask("GET", "/readyz/unheard-of").code == 404
    assert server.ask("GET", "/livez").code == server.ask("GET", "/healthz").code == 200
    metrics = server.ask("GET", "/metrics").body.decode()
    assert "phalanx_store_space_alarm 1.0" in metrics and "phalanx_store_free_bytes 3.145728e+06" in metrics


def test_a_disk_full_to_the_last_byte_still_takes_deletions(tmp_path: Path) -> None:
    """The reserve is given up for them. The disk is played by the limit on pages of the file."""

    async def scenario() -> None:
        path = tmp_path / "store.db"
        store = Store.open(path)
        reserve = Path(f"{path}.reserve")
        assert reserve.stat().st_size > MIB and reserve.stat().st_mode & 0o777 == 0o600
        for i in range(20):
            await store.put(("pods", "ns", f"p{i}"), lambda revision: b"x" * 3000)
        log: Any = store._commits.log  # type: ignore[union-attr]
        full = log.page_count()
        log.limit_pages(full)
        unlink = Path.unlink

        def give_up(self: Path, missing_ok: bool = False) -> None:
            unlink(self, missing_ok)
            if self == reserve:
                log.limit_pages(full + 50)  # as if the file had been on the same disk

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Path, "unlink", give_up)
            for i in range(20):
                await store.delete(("pods", "ns", f"p{i}"), lambda revision: b"x" * 3000)
        assert store.count == 0 and not reserve.exists()
        assert "refused a write" in store.alarm()
        await store.close()

    asyncio.run(scenario())


def test_head_is_answered_on_a_connection_that_stays_open(server: LocalCluster) -> None:
    sock = raw(server)
    for path in ("/version", "/readyz", "/api/v1/namespaces/default", "/api/v1/namespaces?watch=true", "/api/v1/none"):
        sock.sendall(request(server, f"HEAD {path} HTTP/1.1"))
        received = b""
        while not received.endswith(b"\r\n\r\n"):
            piece = sock.recv(65536)
            assert piece, (path, received)
            received += piece
        assert received.startswith(b"HTTP/1.1 404" if path.endswith("none") else b"HTTP/1.1 200"), received
    sock.settimeout(0.05)
    with pytest.raises((TimeoutError, socket.timeout)):
        sock.recv(1)  # no body came behind
    sock.close()


def test_a_data_directory_that_is_gone_is_not_called_a_full_disk(tmp_path: Path) -> None:
    assert Space(tmp_path / "store.db").alarm() == ""
    assert Space(tmp_path / "gone" / "store.db").alarm() == f"the data directory {tmp_path / 'gone'} is gone"


def test_deleted_objects_make_room_on_a_disk_that_is_nearly_full(tmp_path: Path) -> None:
    path, clock = tmp_path / "store.db", ManualClock()

    def free() -> int:
        return 72 * MIB - sum(file.stat().st_size for file in tmp_path.glob("store.db*") if file.suffix != ".reserve")

    space = Space(path, alarm_bytes=36 * MIB, free=free, monotonic=clock.monotonic)

    async def scenario() -> None:
        store = Store.open(path, clock=clock, space=space)
        keys: list[tuple[str, str, str]] = []
        while not store.alarm():
            keys.append(("configmaps", "ns", f"c{len(keys)}"))
            await store.put(keys[-1], lambda revision: b"x" * MIB)
            clock.advance(2)
        for key in keys:
            await store.delete(key, lambda revision: b"x" * MIB)
            clock.advance(2)
            assert free() > 0, "the last states of deleted objects must not fill the disk"
        for _ in range(20):  # changes are forgotten after a while, and small writes go on
            clock.advance(60)
            store._expire()
            await store.put(("leases", "ns", "node"), lambda revision: b"-")
            await asyncio.sleep(0.05)
        assert not store.alarm()
        await store.close()

    asyncio.run(scenario())
