"""A controller that writes the same object again and again is slowed down, and others are not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from phalanx.base.client import Call, Client, Resource, WatchEvent
from phalanx.base.work import WorkQueue
from phalanx.controllers.runtime.cache import WriteGuard
from support.virtual_time import VirtualLoop, run

GROUPS = Resource("scheduling.k8s.io", "v1beta1", "podgroups", "PodGroup")


class Recorder(Client):
    def __init__(self) -> None:
        self.calls: list[str] = []

    async def call(self, call: Call) -> bytes:
        self.calls.append(f"{call.verb} {call.name or call.body['metadata']['name']}")  # type: ignore[index,call-overload]
        return b"{}"

    async def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        return
        yield


def test_a_loop_that_deletes_and_creates_a_group_is_held_to_two_writes_a_second() -> None:
    async def main(loop: VirtualLoop) -> None:
        recorder = Recorder()
        guard = WriteGuard(recorder)
        reported: set[str] = set()
        guard.refused = lambda resource, namespace, name, message: reported.add(f"{resource.kind} {name}")
        queue: WorkQueue[str] = WorkQueue("groups")

        async def reconcile(name: str) -> None:
            await guard.delete(GROUPS, name, "default")
            await guard.create(GROUPS, {"metadata": {"name": name}}, "default")
            queue.add(name)  # what it wrote is an event that leads here again
            await asyncio.sleep(0.01)

        queue.add("hot")
        working = asyncio.create_task(queue.run(reconcile, 1))
        await asyncio.sleep(100)
        working.cancel()
        assert len(recorder.calls) <= 30 + 2 * 100 + 2
        assert reported == {"PodGroup hot"}
        before = len(recorder.calls)
        await guard.create(GROUPS, {"metadata": {"name": "calm"}}, "default")
        assert len(recorder.calls) == before + 1

    run(main)
