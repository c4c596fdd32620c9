"""Events give way to more urgent writes, for a limited time and up to a limited number."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable

import pytest

from phalanx.base.client import Call, Client, WatchEvent
from phalanx.kube import recorder as module
from phalanx.kube.recorder import LONGEST_HELD, ObjectRef, Recorder
from support.virtual_time import VirtualClock, VirtualLoop, run


class Server(Client):
    def __init__(self) -> None:
        self.created: list[bytes] = []

    async def call(self, call: Call) -> bytes:
        self.created.append(call.encoded())
        return b"{}"

    async def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        return
        yield


def recorded(count: int, test: Callable[[Server, Recorder, list[bool]], object]) -> None:
    """Record events while other writes are urgent, and let the test look."""

    async def main(loop: VirtualLoop) -> None:
        server, urgent = Server(), [True]
        recorder = Recorder(server, "sched", "sched-1", VirtualClock(loop), random.Random(1), busy=lambda: urgent[0])
        writing = asyncio.create_task(recorder.run())
        for number in range(count):
            recorder.record(ObjectRef("v1", "Pod", "a", f"p{number}", str(number)), "Normal", "Scheduled", "B", "text")
        await asyncio.sleep(1)
        found = test(server, recorder, urgent)
        if asyncio.iscoroutine(found):
            await found
        writing.cancel()
        await asyncio.wait((writing,))

    run(main)


def test_events_are_written_when_the_urgent_writes_are_done() -> None:
    async def test(server: Server, recorder: Recorder, urgent: list[bool]) -> None:
        await asyncio.sleep(LONGEST_HELD / 2)
        assert not server.created
        urgent[0] = False
        await recorder.flush()
        assert len(server.created) == 50

    recorded(50, test)


def test_no_event_waits_for_longer_than_the_limit() -> None:
    async def test(server: Server, recorder: Recorder, _: list[bool]) -> None:
        await asyncio.sleep(LONGEST_HELD)
        assert len(server.created) == 50

    recorded(50, test)


def test_of_many_events_the_first_are_written_beside_the_urgent_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HELD", 20)

    def test(server: Server, recorder: Recorder, _: list[bool]) -> None:
        assert 25 <= len(server.created) <= 30  # the writers hold some
        assert b'"p0"' in b"".join(server.created[:4])

    recorded(50, test)
