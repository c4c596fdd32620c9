"""Run concurrent histories of the real API handlers over the real store, by seed.

The seed decides the order of operations, when the disk is ready, when it fails, and when the process dies. Only the
moment of a commit is simulated.

    python -m support.histories --histories 100000 --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

import msgspec

from phalanx.base.errors import ApiProblem, ServiceUnavailable
from phalanx.local.api.context import Context
from phalanx.local.api.handler import Api
from phalanx.local.api.index import index_of
from phalanx.local.api.request import Answer, Request
from phalanx.local.api.write import Writer
from phalanx.local.store.commits import CommitThread
from phalanx.local.store.rows import StoredRow
from phalanx.local.store.space import Space
from phalanx.local.store.store import Store
from phalanx.model.builtin import registry
from phalanx.model.gates import Gates
from phalanx.model.kinds import Kind, Registry
from support.linearizability import Object, Operation, check_watch, describe, linearizable
from support.manual_clock import ManualClock

KEYS = 3
CLIENTS = 4
OPERATIONS = 6  # per client and life of the process
VERBS = ("create", "create", "update", "update", "patch", "delete", "delete", "get", "get", "list")
RESULTS = {"AlreadyExists": "exists", "Conflict": "conflict", "NotFound": "missing"}


class SteppedCommits(CommitThread):
    """Commits on request, in the loop's own thread; can simulate a disk that fails."""

    def start(self) -> None: ...

    def submit(self, epoch: int, row: StoredRow) -> None:
        self._queue.append((epoch, row))

    def compact(self) -> None: ...

    def step(self, *, refuse: bool = False) -> None:
        batch, self._queue = self._queue, []
        if not batch:
            return
        if not refuse:
            self._commit(batch)
            return
        commit = self.log.commit

        def full(*_: object, **__: object) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        self.log.commit = full  # type: ignore[method-assign]
        try:
            self._commit(batch)
        finally:
            self.log.commit = commit  # type: ignore[method-assign]

    def stop(self) -> None:
        self.step()
        self.log.close()


class World:
    """One history: a server that may crash and restart, and clients that do not notice."""

    def __init__(self, seed: int, directory: Path, kinds: dict[str, Kind]) -> None:
        self.rng = random.Random(seed)
        self.directory = directory
        self.lives = 0
        self.kinds = kinds
        self.now = 0
        self.history: list[Operation] = []
        self.events: list[tuple[str, int, Object]] = []
        self.versions: list[str] = []  # that clients have seen: what they expect later
        self.known = "0"  # the last revision the watcher heard of
        self.path = directory / "0" / "store.db"
        self.api = self.open()

    def open(self) -> Api:
        clock, space = ManualClock(), Space(self.path, reserve_bytes=0)
        self.store = Store.open(self.path, indexer=index_of, commits=SteppedCommits, clock=clock, space=space)
        chosen = Gates({})
        ctx = Context(self.store, _registry(), chosen, ManualClock(), random.Random(self.rng.random()))
        return Api(ctx, Writer(ctx))

    @property
    def disk(self) -> SteppedCommits:
        assert isinstance(self.store._commits, SteppedCommits)
        return self.store._commits

    def tick(self) -> int:
        self.now += 1
        return self.now

    def request(self, verb: str, name: str = "", body: object = None, **query: str) -> Request:
        kind = self.kinds["configmaps"]
        data = b"" if body is None else msgspec.json.encode(body)
        content = "application/merge-patch+json" if verb == "patch" else "application/json"
        return Request(verb, kind, kind.versions[0], "default", name, "", query, data, content)

    async def begin(self) -> None:
        kind = self.kinds["namespaces"]
        body = msgspec.json.encode({"metadata": {"name": "default"}})
        made = asyncio.ensure_future(self.api.handle(Request("create", kind, kind.versions[0], body=body)))
        while not made.done():
            await asyncio.sleep(0)
            self.disk.step()
        made.result()

    async def run(self) -> None:
        await self.begin()
        for life in range(1 + (self.rng.random() < 0.5)):
            if life:
                self.crash()
            await self.live(life)
        self.crash()
        self.events += [
            event for event in self.announced(self.known) if int(event[2][1]) > int(self.known)
        ]  # what a client that reconnects late still receives
        final = Operation(-1, "list", called=self.tick())
        self.listed(final, await self.api.handle(self.request("list")))
        final.answered = self.tick()
        self.history.append(final)
        await self.store.close()

    async def live(self, life: int) -> None:
        """Run until all clients are done, or the process crashes."""
        clients = [asyncio.ensure_future(self.client(life * CLIENTS + i)) for i in range(CLIENTS)]
        watcher = asyncio.ensure_future(self.watcher())
        dies = self.rng.randrange(5, 60) if life == 0 and self.rng.random() < 0.5 else 1 << 30
        turns = 0
        while not all(client.done() for client in clients):
            await asyncio.sleep(0)
            turns += 1
            if turns == dies:
                break
            if self.rng.random() < 0.3:
                self.disk.step(refuse=self.rng.random() < 0.05)
        if turns == dies:
            self.copy()  # what is on the disk now is all that survives
        for task in clients:
            task.cancel()  # nothing to one that is done
        await asyncio.gather(*clients, return_exceptions=True)
        for task in clients:
            if not task.cancelled() and task.exception() is not None:
                raise task.exception()  # type: ignore[misc]
        if turns != dies:
            self.disk.step()
            for _ in range(5):
                await asyncio.sleep(0)
            self.copy()
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        await self.store.close()

    def copy(self) -> None:
        target = self.directory / str(self.lives + 1) / "store.db"
        target.parent.mkdir()
        for suffix in (".mark", "", "-wal"):
            with suppress(FileNotFoundError):
                shutil.copyfile(f"{self.path}{suffix}", f"{target}{suffix}")

    def crash(self) -> None:
        self.lives += 1
        self.path = self.directory / str(self.lives) / "store.db"
        self.api = self.open()

    def announced(self, since: str) -> list[tuple[str, int, Object]]:
        changes = self.store._window.after("configmaps", "default", int(since))
        kinds = ["DELETED" if c.deleted else "MODIFIED" if c.previous else "ADDED" for c in changes]
        return [_event(kind, change.entry.value) for kind, change in zip(kinds, changes, strict=True)]

    async def watcher(self) -> None:
        request = self.request("watch", resourceVersion=self.known if self.known != "0" else "1")
        async for batch in self.api.events(request):
            for kind, value in batch:
                event = _event(kind, value)
                self.events.append(event)
                self.known = event[2][1]

    async def client(self, number: int) -> None:
        for index in range(OPERATIONS):
            for _ in range(self.rng.randrange(4)):
                await asyncio.sleep(0)
            verb = self.rng.choice(VERBS)
            op = Operation(number, verb, self.rng.randrange(KEYS), f"v{number}-{index}")
            if verb in ("update", "delete") and self.versions and (verb == "update" or self.rng.random() < 0.5):
                op.expect = self.rng.choice(self.versions[-4:])
            op.called = self.tick()
            self.history.append(op)
            await self.perform(op)

    async def perform(self, op: Operation) -> None:
        try:
            answer = await self.api.handle(self.request_of(op))
        except ServiceUnavailable:
            op.result = "failed"
        except ApiProblem as problem:
            op.result = RESULTS[problem.reason]
        else:
            op.result = "ok"
            if op.verb == "list":
                self.listed(op, answer)
            elif op.verb != "delete":
                _, _, (op.seen, op.version) = _event("", answer.body)
                self.versions.append(op.version)
        op.answered = self.tick()

    def request_of(self, op: Operation) -> Request:
        name = f"k{op.key}"
        metadata = {"name": name} | ({"resourceVersion": op.expect} if op.expect else {})
        match op.verb:
            case "create":
                return self.request("create", "", {"metadata": metadata, "data": {"v": op.value}})
            case "update":
                return self.request("update", name, {"metadata": metadata, "data": {"v": op.value}})
            case "patch":
                return self.request("patch", name, {"data": {"v": op.value}})
            case "delete":
                conditions = {"preconditions": {"resourceVersion": op.expect}} if op.expect else None
                return self.request("delete", name, conditions)
        op.value = ""
        return self.request(op.verb, name if op.verb == "get" else "")

    def listed(self, op: Operation, answer: Answer) -> None:
        whole = msgspec.json.decode(answer.whole())
        op.listed = {key: obj for _, key, obj in (_event("", msgspec.json.encode(item)) for item in whole["items"])}
        op.result = "ok"


def _event(kind: str, value: bytes) -> tuple[str, int, Object]:
    obj = msgspec.json.decode(value)
    metadata = obj["metadata"]
    return kind, int(metadata["name"][1:]), (obj["data"]["v"], metadata["resourceVersion"])


@cache
def _registry() -> Registry:
    """Build the registry once: that takes longer than a history, and no history changes it."""
    return registry(Gates({}))


def run_history(seed: int, prepare: Callable[[World], None] | None = None) -> tuple[str, int]:
    """Return what is wrong with this history ("" if nothing), and how many operations it had."""
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    kinds = {kind.plural: kind for kind in _registry().all() if kind.group == ""}
    with tempfile.TemporaryDirectory(prefix="phalanx-histories-", dir=place) as directory:
        loop = asyncio.new_event_loop()
        try:
            world = World(seed, Path(directory), kinds)
            if prepare is not None:
                prepare(world)
            loop.run_until_complete(world.run())
        finally:
            loop.close()
    if not linearizable(world.history, KEYS):
        return describe("no order explains these answers", world.history, seed), len(world.history)
    wrong = check_watch(world.events, world.history)
    return (describe(f"the watch is wrong: {wrong}", world.history, seed) if wrong else ""), len(world.history)


def main() -> int:
    parser = argparse.ArgumentParser(description="Check many histories; stops at the first that cannot be explained.")
    parser.add_argument("--histories", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    total = 0
    for seed in range(options.seed, options.seed + options.histories):
        problem, operations = run_history(seed)
        total += operations
        if problem:
            sys.stdout.write(problem + "\n")
            return 1
        if (seed - options.seed + 1) % 5000 == 0:
            sys.stdout.write(f"{seed - options.seed + 1} histories\n")
            sys.stdout.flush()
    sys.stdout.write(f"{options.histories} histories with {total} operations: all linearizable, all watches whole\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
