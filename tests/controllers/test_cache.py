"""What controllers see of the server: whole, by index and by label, however few objects are kept decoded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from phalanx.base.client import Resource
from phalanx.controllers.runtime import cache as module
from phalanx.controllers.runtime.cache import MARKED, Cache, Key, by_labels
from phalanx.model.selectors import parse_labels
from support.in_process import Inside, inside

PODS = Resource("", "v1", "pods", "Pod")
Json = dict[str, Any]
SPEC = {"containers": [{"name": "c", "image": "i"}]}


def play(scenario: Callable[[Inside, Cache], Awaitable[None]], *, duties: bool = True) -> None:
    async def main() -> None:
        async with inside(duties=duties) as cluster:
            cache = Cache(cluster.client, PODS)
            cache.index("labels", by_labels, of_marks=True)
            for number in range(20):
                labels = {"app": "web" if number % 2 else "db", "n": str(number)}
                await cluster.create("Pod", f"p{number:02d}", metadata={"labels": labels}, spec=SPEC)
            running = asyncio.create_task(cache.run())
            await cache.synced()
            await scenario(cluster, cache)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def names(objects: list[Json]) -> list[str]:
    return [obj["metadata"]["name"] for obj in objects]


def announced(cache: Cache) -> asyncio.Queue[tuple[Key, Json | None, Json | None]]:
    queue: asyncio.Queue[tuple[Key, Json | None, Json | None]] = asyncio.Queue()
    cache.on_change(lambda *change: queue.put_nowait(change))
    return queue


@pytest.mark.parametrize("kept", [1, 7, 8192])
def test_objects_are_found_whether_they_are_kept_decoded_or_not(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.RECENT, "pods", kept)

    async def scenario(cluster: Inside, cache: Cache) -> None:
        assert len(cache) == 20 and len(list(cache)) == 20
        assert len(cache._decoded) <= kept
        for text, expected in {
            "app=web,n=3": ["p03"],
            "app in (web,db),n in (4)": ["p04"],
            "app=web,n notin (1,3)": [f"p{n:02d}" for n in range(5, 20, 2)],
            "app=nobody": [],
            "n,!app": [],
        }.items():
            assert names(cache.matching("labels", "default", parse_labels(text))) == expected
        assert len(cache.matching("labels", "default", parse_labels(""))) == 20
        assert cache.matching("labels", "elsewhere", parse_labels("app=web")) == []
        found = cache.get("default", "p05")
        assert found is not None and found["kind"] == "Pod" and "managedFields" not in found["metadata"]
        assert cache.get("default", "nobody") is None

    play(scenario)


@pytest.mark.parametrize("kept", [1, 8192])
def test_changes_come_with_the_state_before_and_indexes_follow(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(module.RECENT, "pods", kept)

    async def scenario(cluster: Inside, cache: Cache) -> None:
        changes = announced(cache)
        await cluster.patch("Pod", "p03", {"metadata": {"labels": {"app": "db"}}})
        key, new, old = await changes.get()
        assert key == ("default", "p03") and new is not None and old is not None
        assert (old["metadata"]["labels"]["app"], new["metadata"]["labels"]["app"]) == ("web", "db")
        assert cache.matching("labels", "default", parse_labels("app=web,n=3")) == []
        assert names(cache.matching("labels", "default", parse_labels("app=db,n=3"))) == ["p03"]
        await cluster.delete("Pod", "p04", grace_seconds=0)
        key, new, old = await changes.get()
        assert key.name == "p04" and new is not None and new["metadata"]["deletionTimestamp"]
        key, new, old = await changes.get()
        assert key.name == "p04" and new is None and old is not None
        assert cache.get("default", "p04") is None and len(cache) == 19
        assert not cache.any_in_index("labels", "default/n=4")

    play(scenario)


def test_an_answer_counts_at_once_but_never_brings_back_what_is_gone() -> None:
    async def scenario(cluster: Inside, cache: Cache) -> None:
        changes = announced(cache)
        before = cluster.look("Pod", "p01")
        assert before is not None
        later = before | {"metadata": before["metadata"] | {"labels": {"app": "new"}, "resourceVersion": "999999"}}
        cache.remember(later)
        assert names(cache.matching("labels", "default", parse_labels("app=new"))) == ["p01"]
        cache.remember(before)
        assert names(cache.matching("labels", "default", parse_labels("app=new"))) == ["p01"], "older news"
        await cluster.delete("Pod", "p01", grace_seconds=0)
        await changes.get()
        cache.remember(later)
        assert cache.get("default", "p01") is None

    play(scenario)


def test_a_handler_that_fails_keeps_no_other_handler_from_hearing_and_ends_nothing() -> None:
    async def scenario(cluster: Inside, cache: Cache) -> None:
        def ill(key: Key, new: Json | None, old: Json | None) -> None:
            raise ValueError(f"a defect about {key}")

        cache.on_change(ill)
        heard = announced(cache)
        await cluster.create("Pod", "one", spec=SPEC)
        await cluster.create("Pod", "two", spec=SPEC)
        async with asyncio.timeout(60):
            assert [(await heard.get())[0].name for _ in range(2)] == ["one", "two"]
        assert cache.failed == 2

    play(scenario)


def test_a_handler_hears_of_what_concerns_it_now_or_did_before() -> None:
    async def scenario(cluster: Inside, cache: Cache) -> None:
        heard: dict[str, list[str]] = {"marked": [], "Job": [], "ReplicaSet": []}
        cache.on_change(lambda key, new, old: heard["marked"].append(key.name), of=MARKED)
        cache.on_change(lambda key, new, old: heard["Job"].append(key.name), of="Job")
        cache.on_change(lambda key, new, old: heard["ReplicaSet"].append(key.name), of="ReplicaSet")
        everything = announced(cache)
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "u", "controller": True}

        async def change(body: Json) -> None:
            await cluster.client.patch(PODS, "plain", body, "default")
            await everything.get()

        await cluster.create("Pod", "plain", spec=SPEC)
        await everything.get()
        assert heard == {"marked": [], "Job": [], "ReplicaSet": []}
        await change({"metadata": {"labels": {"app": "late"}}})
        assert heard == {"marked": ["plain"], "Job": [], "ReplicaSet": []}
        assert names(cache.matching("labels", "default", parse_labels("app=late"))) == ["plain"]
        await change({"metadata": {"ownerReferences": [owner], "labels": None}})
        assert heard == {"marked": ["plain"] * 2, "Job": ["plain"], "ReplicaSet": []}
        assert cache.matching("labels", "default", parse_labels("app=late")) == []
        await change({"metadata": {"ownerReferences": None}})  # it was the Job's until now
        assert heard == {"marked": ["plain"] * 3, "Job": ["plain"] * 2, "ReplicaSet": []}
        await change({"metadata": {"annotations": {"a": "b"}}})
        assert heard == {"marked": ["plain"] * 3, "Job": ["plain"] * 2, "ReplicaSet": []}

    play(scenario, duties=False)  # the Job that is named is not missed


def test_objects_that_are_not_of_the_usual_form_are_read_too() -> None:
    config_maps = Resource("", "v1", "configmaps", "ConfigMap")

    async def main() -> None:
        async with inside() as cluster:
            cache = Cache(cluster.client, config_maps)
            await cluster.client.create(
                config_maps,
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"k": "v"}},
                "default",
            )
            running = asyncio.create_task(cache.run())
            await cache.synced()
            found = cache.get("default", "c")
            assert found is not None and found["data"] == {"k": "v"} and found["apiVersion"] == "v1"
            assert "managedFields" not in found["metadata"]
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())
