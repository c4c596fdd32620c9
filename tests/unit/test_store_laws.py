"""Laws of store and watch, under any order of writes, watches, restarts and crashes."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from phalanx.local.store import Store, WindowBounds
from phalanx.local.store.contract import Compacted, Entry, Key, RevisionMismatch, SlowWatcher
from phalanx.local.store.watchers import StoreWatcher

State = dict[Key, tuple[bytes, int]]
KEYS: list[Key] = [("pods", ns, name) for ns in ("a", "b") for name in ("x", "y", "z")] + [("nodes", "", "n")]
SCOPES = [("pods", ""), ("pods", "a"), ("pods", "b"), ("nodes", "")]
ops = st.tuples(st.sampled_from(["put", "create", "update", "delete"]), st.sampled_from(KEYS), st.binary(max_size=40))


def in_scope(state: State, scope: tuple[str, str]) -> State:
    return {k: v for k, v in state.items() if k[0] == scope[0] and scope[1] in ("", k[1])}


def as_state(entries: Any) -> State:
    return {entry.key: (entry.value, entry.revision) for entry in entries}


class Replay:
    """A client that lists once and then only listens."""

    def __init__(self, watcher: StoreWatcher, state: State) -> None:
        self.watcher = watcher
        self.state = dict(state)


class StoreLaws(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.root = Path(tempfile.mkdtemp())
        self.lives = 0
        self.path = self.root / "0" / "store.db"
        self.store = self.reopen()
        self.model: State = {}
        self.snapshots: dict[int, State] = {0: {}}
        self.replays: list[Replay] = []

    def reopen(self) -> Store:
        return Store.open(self.path, window=WindowBounds(changes=12), indexer=lambda resource, value: len(value))

    def run(self, awaitable: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(awaitable)

    def teardown(self) -> None:
        self.run(self.store.close())
        self.loop.close()
        shutil.rmtree(self.root)

    def submit(self, op: str, key: Key, value: bytes) -> asyncio.Task[Entry]:
        current = self.store.latest(key)
        expect = {"put": None, "create": 0, "update": current.revision if current else 1, "delete": None}[op]
        write = self.store.delete if op == "delete" else self.store.put
        task = self.loop.create_task(write(key, lambda revision: value + b"@%d" % revision, expect))
        self.run(asyncio.sleep(0))  # one turn: the write is submitted, not yet acknowledged
        return task

    def learn(self, op: str, key: Key, value: bytes, revision: int) -> None:
        assert revision > max(self.snapshots), "a revision was used twice"
        if op == "delete":
            del self.model[key]
        else:
            self.model[key] = (value + b"@%d" % revision, revision)
        self.snapshots[revision] = dict(self.model)

    def revision_at(self, position: int) -> int:
        # Which writes survive a crash is a race, so the choice must not depend on how many there are.
        known = sorted(self.snapshots)
        return known[position % len(known)]

    @rule(batch=st.lists(ops, min_size=1, max_size=8))
    def write(self, batch: list[tuple[str, Key, bytes]]) -> None:
        tasks = [(op, self.submit(*op)) for op in batch]
        for (op, key, value), task in tasks:
            there = key in self.model
            try:
                entry = self.run(asyncio.wait_for(task, 30))
            except RevisionMismatch:
                assert (op == "create" and there) or (op in ("update", "delete") and not there)
            else:
                assert not (op == "create" and there) and not (op == "delete" and not there)
                assert entry.index == len(entry.value)
                self.learn(op, key, value, entry.revision)
                assert self.store.revision >= entry.revision

    @rule(scope=st.sampled_from(SCOPES), position=st.integers(0, 1000))
    def watch(self, scope: tuple[str, str], position: int) -> None:
        since = self.revision_at(position)
        if since < self.store.oldest:
            with pytest.raises(Compacted):
                self.store.watch(*scope, since)
        else:
            self.replays.append(Replay(self.store.watch(*scope, since), in_scope(self.snapshots[since], scope)))

    @rule()
    def listen(self) -> None:
        for replay in tuple(self.replays):
            while replay.watcher.progress < self.store.revision:
                try:
                    batch = self.run(asyncio.wait_for(anext(replay.watcher), 30))
                except SlowWatcher:
                    assert replay.watcher.progress < self.store.oldest, "cut off although nothing was lost"
                    self.replays.remove(replay)
                    break
                assert [c.revision for c in batch] == sorted({c.revision for c in batch})
                for change in batch:
                    key, before = change.entry.key, replay.state.get(change.entry.key)
                    previous = change.previous and (change.previous.value, change.previous.revision)
                    assert previous == before, "a change does not follow on what the watcher saw"
                    if change.deleted:
                        del replay.state[key]
                    else:
                        replay.state[key] = (change.entry.value, change.revision)
                    assert replay.state == in_scope(self.snapshots[change.revision], replay.watcher.scope)

    @rule(scope=st.sampled_from(SCOPES), position=st.integers(0, 1000))
    def list_the_past(self, scope: tuple[str, str], position: int) -> None:
        revision = self.revision_at(position)
        if revision < self.store.oldest:
            with pytest.raises(Compacted):
                self.store.list_at(*scope, revision)
        else:
            entries = self.store.list_at(*scope, revision)
            assert as_state(entries) == in_scope(self.snapshots[revision], scope)
            assert [e.key for e in entries] == sorted(e.key for e in entries)

    @rule()
    def restart(self) -> None:
        oldest = self.store.oldest
        self.run(self.store.close())
        self.replays.clear()
        self.store = self.reopen()
        assert self.store.oldest == oldest, "watches that worked before the restart must work after it"

    @rule(batch=st.lists(ops, max_size=4))
    @precondition(lambda self: self.lives < 4)
    def crash(self, batch: list[tuple[str, Key, bytes]]) -> None:
        """The files as a power cut would leave them while writes are under way."""
        tasks = [(op, self.submit(*op)) for op in batch]
        copy = self.root / str(self.lives + 1) / "store.db"
        copy.parent.mkdir()
        for suffix in (".mark", "", "-wal"):
            shutil.copyfile(f"{self.path}{suffix}", f"{copy}{suffix}")
        outcomes = self.run(_gather([task for _, task in tasks]))
        self.run(self.store.close())
        self.path, self.lives = copy, self.lives + 1
        self.replays.clear()
        self.store = self.reopen()
        for (op, _), entry in zip(tasks, outcomes, strict=True):
            if isinstance(entry, Entry) and entry.revision <= self.store.revision:
                self.learn(*op, entry.revision)  # it made it to the disk before the cut

    @invariant()
    def list_equals_acknowledged(self) -> None:
        for scope in SCOPES:
            entries = self.store.list(*scope)
            assert as_state(entries) == in_scope(self.model, scope)
            assert [e.key for e in entries] == sorted(e.key for e in entries)
        assert self.store.revision == max(self.snapshots)
        assert self.store.count == len(self.model)
        for key in KEYS:
            assert self.store.get(key) == self.store.latest(key)


async def _gather(tasks: list[asyncio.Task[Entry]]) -> list[Any]:
    return await asyncio.gather(*tasks, return_exceptions=True)


TestStoreLaws = StoreLaws.TestCase
TestStoreLaws.settings = settings(
    max_examples=40, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
