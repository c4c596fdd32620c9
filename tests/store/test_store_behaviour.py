"""What the API server relies on: conflicts, visibility, slow watchers, the window, a file that stays small."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from phalanx.base.errors import ServiceUnavailable
from phalanx.local.store import Bounds, Store
from phalanx.local.store import log as log_module
from phalanx.local.store.contract import Change, Compacted, Entry, Key, RevisionMismatch, SlowWatcher
from phalanx.local.store.log import Log, Row
from phalanx.local.store.watchers import StoreWatcher

POD: Key = ("pods", "default", "p")


async def put(store: Store, name: str, value: bytes = b"{}", expect: int | None = None) -> Entry:
    return await store.put(("pods", "default", name), lambda revision: value, expect)


def test_a_write_is_seen_by_others_only_when_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    commit = Log.commit

    def slow_commit(self: Log, rows: Sequence[Row], discard: Sequence[int] = (), floor: int = 0) -> None:
        assert gate.wait(30)
        commit(self, rows, discard, floor)

    monkeypatch.setattr(Log, "commit", slow_commit)

    async def scenario() -> None:
        store = Store.open(tmp_path / "s.db")
        watcher = store.watch("pods")
        task = asyncio.create_task(put(store, "p", b"1"))
        await asyncio.sleep(0)
        assert store.get(POD) is None and not store.list("pods") and store.revision == 0 and watcher.progress == 0
        pending = store.latest(POD)
        assert pending is not None and pending.revision == 1
        with pytest.raises(RevisionMismatch):  # the second creation loses although the first is still on its way
            await put(store, "p", b"2", expect=0)
        gate.set()
        assert (await task).revision == 1
        assert store.get(POD) == store.latest(POD) == pending
        assert [change.entry for change in await anext(watcher)] == [pending]
        await store.close()

    asyncio.run(scenario())


def test_a_client_that_gave_up_does_not_undo_its_write() -> None:
    async def scenario() -> None:
        store = Store.open(":memory:")
        task = asyncio.create_task(put(store, "p"))
        await asyncio.sleep(0)
        task.cancel()
        await put(store, "q")
        assert [entry.key[2] for entry in store.list("pods")] == ["p", "q"]

    asyncio.run(scenario())


def test_a_build_that_fails_costs_no_revision() -> None:
    def broken(revision: int) -> bytes:
        raise ValueError(revision)

    async def scenario() -> None:
        store = Store.open(":memory:")
        with pytest.raises(ValueError):
            await store.put(POD, broken)
        assert store.latest(POD) is None
        assert (await put(store, "p")).revision == 1

    asyncio.run(scenario())


def test_deleting_what_is_not_there_is_a_mismatch() -> None:
    async def scenario() -> None:
        store = Store.open(":memory:")
        with pytest.raises(RevisionMismatch) as caught:
            await store.delete(POD, lambda revision: b"")
        assert caught.value.current is None

    asyncio.run(scenario())


def test_a_watcher_that_never_reads_is_cut_off_and_others_go_on() -> None:
    def no_close(watcher: StoreWatcher) -> None: ...

    change = Change(1, False, Entry(POD, b"x" * 100, 1, 1, None), None)
    by_count = StoreWatcher(("pods", ""), [], 0, lambda: 9, no_close, max_changes=3, max_bytes=10**6)
    by_bytes = StoreWatcher(("pods", ""), [], 0, lambda: 9, no_close, max_changes=100, max_bytes=350)
    for watcher in (by_count, by_bytes):
        for _ in range(3):
            watcher.push([change], 100)
        assert len(asyncio.run(anext_of(watcher))) == 3  # reading in time makes room again
        for _ in range(4):
            watcher.push([change], 100)
        with pytest.raises(SlowWatcher):
            asyncio.run(anext_of(watcher))


async def anext_of(watcher: StoreWatcher) -> Sequence[Change]:
    return await asyncio.wait_for(anext(watcher), 10)


def test_closing_ends_watches_and_refuses_writes() -> None:
    async def scenario() -> None:
        store = Store.open(":memory:")
        watcher = store.watch("pods")
        waiting = asyncio.create_task(anext_of(watcher))
        await asyncio.sleep(0)
        await store.close()
        with pytest.raises(StopAsyncIteration):
            await waiting
        with pytest.raises(ServiceUnavailable):
            await put(store, "p")
        assert store.watchers == 0

    asyncio.run(scenario())


def test_a_watch_from_the_future_starts_there() -> None:
    async def scenario() -> None:
        store = Store.open(":memory:")
        watcher = store.watch("pods", since=2)
        for name in "abc":
            await put(store, name)
        assert [change.revision for change in await anext_of(watcher)] == [3]

    asyncio.run(scenario())


def test_the_window_is_bounded_by_bytes_too() -> None:
    async def scenario() -> None:
        store = Store.open(":memory:", window=Bounds(changes=1000, bytes=50_000))
        for _ in range(30):
            await put(store, "p", b"x" * 10_000)
        assert 20 < store.oldest < 30
        with pytest.raises(Compacted) as caught:
            store.watch("pods", since=5)
        assert caught.value.oldest == store.oldest
        assert len(await anext_of(store.watch("pods", since=store.oldest))) == 30 - store.oldest

    asyncio.run(scenario())


def test_deletions_at_the_top_do_not_let_revisions_be_used_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        store = Store.open(tmp_path / "s.db", window=Bounds(changes=1))
        await put(store, "p")
        await store.delete(POD, lambda revision: b"{}")
        await put(store, "q")
        last = await store.delete(("pods", "default", "q"), lambda revision: b"{}")
        await store.close()
        store = Store.open(tmp_path / "s.db", window=Bounds(changes=1))
        assert store.count == 0
        assert (await put(store, "r")).revision == last.revision + 1
        await store.close()

    asyncio.run(scenario())


def test_the_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "CHECKPOINT_BYTES", 256 << 10)

    async def scenario() -> None:
        store = Store.open(tmp_path / "s.db", window=Bounds(changes=100))
        sizes = []
        for _ in range(6):
            for _ in range(20):
                await asyncio.gather(*(put(store, f"p{i}", b"x" * 3000) for i in range(50)))
            sizes.append(sum(f.stat().st_size for f in tmp_path.iterdir()))
        live = 50 * 3000
        assert max(sizes[1:]) < 12 * live, sizes
        for i in range(50):
            await store.delete(("pods", "default", f"p{i}"), lambda revision: b"{}")
        await store.close()
        log = Log(tmp_path / "s.db")
        assert log.rows <= 202  # at most the window with its tombstones
        log.close()

    asyncio.run(scenario())


def test_lists_are_sorted_across_namespaces_and_never_change_under_the_reader() -> None:
    async def scenario() -> None:
        store = Store.open(":memory:")
        for namespace, name in [("b", "z"), ("a", "y"), ("b", "a"), ("a-b", "x"), ("a", "b")]:
            await store.put(("pods", namespace, name), lambda revision: b"{}")
        before = store.list("pods")
        assert [e.key[1:] for e in before] == [("a", "b"), ("a", "y"), ("a-b", "x"), ("b", "a"), ("b", "z")]
        await store.delete(("pods", "a", "y"), lambda revision: b"{}")
        assert len(before) == 5 and len(store.list("pods")) == 4
        assert [e.key[2] for e in store.list("pods", "b")] == ["a", "z"] and not store.list("pods", "c")

    asyncio.run(scenario())
