"""Writers that meet: over a store on disk, where every write takes a while to become durable."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.base.errors import ApiProblem
from support.api_world import CONFIGS, MERGE, PODS, STRATEGIC, World, config
from support.manifests import pod


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[World]:
    world = World(path=str(tmp_path / "db"))
    yield world
    world.close()


def all_at_once(world: World, requests: list[Any]) -> Counter[int]:
    """How often each HTTP code was answered."""

    async def one(request: Any) -> int:
        try:
            return (await world.writer.handle(request)).code
        except ApiProblem as problem:
            return problem.http_code

    async def everything() -> list[int]:
        return await asyncio.gather(*(one(request) for request in requests))

    return Counter(world.run(everything()))


def test_one_of_many_creates_of_a_name_wins(disk: World) -> None:
    assert all_at_once(disk, [disk.request("create", CONFIGS, config("c", i=str(i))) for i in range(20)]) == {
        201: 1,
        409: 19,
    }


def test_generated_names_never_collide(disk: World) -> None:
    body = {"metadata": {"generateName": "x-"}}
    assert all_at_once(disk, [disk.request("create", CONFIGS, body) for _ in range(200)]) == {201: 200}


def test_one_of_many_bindings_wins(disk: World) -> None:
    disk.create(PODS, pod("p"))
    bindings = [
        disk.request("create", f"{PODS}/p/binding", {"target": {"kind": "Node", "name": f"n{i}"}}) for i in range(10)
    ]
    assert all_at_once(disk, bindings) == {201: 1, 409: 9}


def test_patches_without_a_revision_all_arrive(disk: World) -> None:
    disk.create(CONFIGS, config("c"))
    patches = [disk.request("patch", f"{CONFIGS}/c", {"data": {f"k{i}": "v"}}, MERGE) for i in range(50)]
    assert all_at_once(disk, patches) == {200: 50}
    assert len(disk.get(f"{CONFIGS}/c")["data"]) == 50


def test_of_updates_from_one_revision_one_wins(disk: World) -> None:
    made = disk.create(CONFIGS, config("c"))
    updates = [disk.request("update", f"{CONFIGS}/c", {**made, "data": {"k": str(i)}}) for i in range(10)]
    assert all_at_once(disk, updates) == {200: 1, 409: 9}


def test_a_budget_is_never_overspent(disk: World) -> None:
    for i in range(8):
        body = pod(f"p{i}")
        body["metadata"]["labels"] = {"app": "web"}
        disk.create(PODS, body)
        disk.create(f"{PODS}/p{i}/binding", {"target": {"name": "n"}})
        status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        disk.patch(f"{PODS}/p{i}/status", {"status": status}, STRATEGIC)
    budgets = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets"
    spec = {"minAvailable": 5, "selector": {"matchLabels": {"app": "web"}}}
    generation = disk.create(budgets, {"metadata": {"name": "b"}, "spec": spec})["metadata"]["generation"]
    status = {"observedGeneration": generation, "disruptionsAllowed": 3, "currentHealthy": 8, "desiredHealthy": 5}
    disk.patch(f"{budgets}/b/status", {"status": status})
    evictions = [disk.request("create", f"{PODS}/p{i}/eviction", {"metadata": {"name": f"p{i}"}}) for i in range(8)]
    assert all_at_once(disk, evictions) == {201: 3, 429: 5}
    terminating = [i for i in range(8) if disk.get(f"{PODS}/p{i}")["metadata"].get("deletionTimestamp")]
    assert len(terminating) == 3


def test_deletes_and_finalizer_removals_leave_nothing_behind(disk: World) -> None:
    for i in range(20):
        body = config(f"c{i}")
        body["metadata"]["finalizers"] = ["example.com/a"]
        disk.create(CONFIGS, body)
    requests = []
    for i in range(20):
        pair = [
            disk.request("delete", f"{CONFIGS}/c{i}"),
            disk.request("patch", f"{CONFIGS}/c{i}", {"metadata": {"finalizers": None}}, MERGE),
        ]
        requests += pair if i % 2 else reversed(pair)
    assert all_at_once(disk, requests) == {200: 40}
    assert not disk.store.list("configmaps", "ns")
