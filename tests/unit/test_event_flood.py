"""A flood of events: no task waits for it, the latest news is written, and what was dropped is counted and reported."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from phalanx.base.clock import SystemClock
from phalanx.base.resources import EVENTS_V1
from phalanx.kube import recorder as module
from phalanx.kube.client import HttpClient
from phalanx.kube.recorder import ObjectRef, Recorder
from support.waiting import eventually_async


def test_the_latest_events_of_a_flood_are_written_and_the_others_counted_and_reported(
    run: Callable[[Callable[[HttpClient], Awaitable[Any]]], Any],
    namespace: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "QUEUE", 10)

    async def test(client: HttpClient) -> bytes:
        recorder = Recorder(client, "sched", "sched-1", SystemClock(), random.Random(1))
        for number in range(25):  # before any is written
            about = ObjectRef("v1", "Pod", namespace, f"pod-{number:02d}", str(number))
            recorder.record(about, "Normal", "Scheduled", "Binding", "assigned")
        assert recorder.dropped == 15
        writing = asyncio.create_task(recorder.run())
        await recorder.flush()
        writing.cancel()
        await eventually_async(writing.done, "the writers end")
        return await client.list(EVENTS_V1, namespace)

    with caplog.at_level(logging.WARNING, logger="phalanx.kube.recorder"):
        found = run(test)
    assert [number for number in range(25) if b'"pod-%02d"' % number in found] == list(range(15, 25))
    announced = [entry.getMessage() for entry in caplog.records]
    assert announced == ["events dropped: 1, 1 in all (10 were waiting to be written); nothing else is lost"]
