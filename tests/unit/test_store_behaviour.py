"""What the API server relies on: conflicts, visibility, slow watchers, the window, a file that stays small."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from phalanx.base.errors import ServiceUnavailable
from phalanx.local.store import Store, WindowBounds
from phalanx.local.store import log as log_module
from phalanx.local.store.contract import Change, Compacted, Entry, Key, RevisionMismatch, SlowWatcher
from phalanx.local.store.log import Log
from phalanx.local.store.rows import StoredRow
from phalanx.local.store.watchers import StoreWatcher
from support.manual_clock import ManualClock

POD: Key = ("pods", "default", "p")


async def put(store: Store, name: str, value: bytes = b"{}", expect: int | None = None) -> Entry:
    return await store.put(("pods", "default", name), lambda revision: value, expect)


def test_a_write_is_seen_by_others_only_when_it_is_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    commit = Log.commit

    def slow_commit(self: Log, rows: Sequence[StoredRow], discard: Sequence[int] = (), floor: int = 0) -> None:
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
    async def scenario() -> None:
        store = Store.open(":memory:", window=WindowBounds(changes=10))
        dead, other, late = store.watch("pods"), store.watch("nodes"), store.watch("pods", since=0)
        for _ in range(3):
            await put(store, "p")
        assert len(await anext_of(late)) == 3
        for _ in range(9):
            await put(store, "p")
        assert len(await anext_of(late)) == 9  # reading in time is all that is asked
        with pytest.raises(SlowWatcher):
            await anext_of(dead)
        await store.put(("nodes", "", "n"), lambda revision: b"{}")
        assert len(await anext_of(other)) == 1  # nothing it had to see has gone

    asyncio.run(scenario())


def test_watchers_that_never_read_hold_nothing_of_their_own() -> None:
    async def scenario() -> None:
        store = Store.open(":memory:", window=WindowBounds(changes=100))
        dead = [store.watch("pods") for _ in range(60)]
        for _ in range(1000):
            await put(store, "p")
        assert len(store._window) == 100
        run = dead[0].run
        assert all(watcher.run is run for watcher in dead)
        assert len(run) == 100 and len(run._changes) <= 2 * 100 + 64
        for watcher in dead:
            watcher.close()
        assert store.watchers == 0 and run.followers == 0

    asyncio.run(scenario())


def test_what_is_handed_out_at_a_time_is_bounded_and_the_same_for_all() -> None:
    async def scenario() -> None:
        store = Store.open(":memory:")
        watchers = [store.watch("pods") for _ in range(3)]
        for _ in range(8):
            await put(store, "p", value=b"x" * 100_000)
        for _ in range(3):
            pieces = [await anext_of(watcher) for watcher in watchers]
            assert 1 <= len(pieces[0]) <= 3
            assert pieces[0] == pieces[1] == pieces[2]

    asyncio.run(scenario())


def test_old_changes_are_given_back_while_no_client_writes(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        store = Store.open(tmp_path / "s.db", window=WindowBounds(seconds=60), clock=clock)
        follower = store.watch("pods")
        for _ in range(50):
            await put(store, "p")
            clock.advance(1)
        assert len(await anext_of(follower)) == 50
        clock.advance(40)
        store._expire()
        assert len(store._window) == 20
        clock.advance(60)
        store._expire()
        assert len(store._window) == 0 and store._window.bytes == 0 and store._expiry is None
        assert store.get(POD) is not None
        with pytest.raises(Compacted):
            store.watch("pods", since=10)
        await put(store, "p")
        assert len(await anext_of(follower)) == 1
        await store.close()
        log = Log(tmp_path / "s.db")
        assert log.rows <= 2  # the object and what its last change superseded
        log.close()

    asyncio.run(scenario())


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
        store = Store.open(":memory:", window=WindowBounds(changes=1000, bytes=50_000))
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
        store = Store.open(tmp_path / "s.db", window=WindowBounds(changes=1))
        await put(store, "p")
        await store.delete(POD, lambda revision: b"{}")
        await put(store, "q")
        last = await store.delete(("pods", "default", "q"), lambda revision: b"{}")
        await store.close()
        store = Store.open(tmp_path / "s.db", window=WindowBounds(changes=1))
        assert store.count == 0
        assert (await put(store, "r")).revision == last.revision + 1
        await store.close()

    asyncio.run(scenario())


def test_the_file_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "CHECKPOINT_BYTES", 256 << 10)

    async def scenario() -> None:
        store = Store.open(tmp_path / "s.db", window=WindowBounds(changes=100))
        sizes = []
        for _ in range(6):
            for _ in range(20):
                await asyncio.gather(*(put(store, f"p{i}", b"x" * 3000) for i in range(50)))
            sizes.append(sum(f.stat().st_size for f in tmp_path.iterdir() if f.suffix != ".reserve"))
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
