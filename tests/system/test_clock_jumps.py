"""A scheduler whose machine's clock is set."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from phalanx.base.clock import MonotonicTime, SystemClock
from phalanx.engine.engine import Engine
from phalanx.engine.framework.settings import EngineSettings, PluginUse, ProfileSettings
from phalanx.engine.plugins.registry import DEFAULT_PLUGINS
from phalanx.model.gates import Gates
from phalanx.serve.scheduler import SchedulerService
from support import in_process
from support.in_process import inside

HOUR = 3600.0


class SetClock(SystemClock):
    offset = 0.0

    def now(self) -> float:
        return super().now() + self.offset


class FailsOnce:
    """An attempt that failed goes to backoff; at that moment the clock is set."""

    name = "FailsOnce"

    def __init__(self, clock: SetClock, offset: float) -> None:
        self.clock, self.offset, self.calls = clock, offset, 0

    def filter(self, shape: object, node: object) -> None:
        self.calls += 1
        if self.calls == 1:
            self.clock.offset = self.offset
            raise RuntimeError("once")


@pytest.mark.parametrize("offset", [-HOUR, 24 * HOUR])
def test_a_pod_in_backoff_is_tried_again_in_seconds(offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "TIMEOUT", 8.0)  # the first backoff is one second

    async def scenario() -> None:
        clock = SetClock()
        plugin = FailsOnce(clock, offset)
        uses = (*(PluginUse(name) for name in DEFAULT_PLUGINS), PluginUse("FailsOnce"))
        settings = EngineSettings(profiles=(ProfileSettings(plugins=uses),))
        engine = Engine(settings, plugins={"FailsOnce": lambda args, handle: plugin})
        async with inside(duties=False) as cluster:
            status: dict[str, Any] = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20"}}
            await cluster.create("Node", "n", status=status)
            await cluster.create("Pod", "a", spec={"containers": [{"name": "main", "image": "x"}]})
            service = SchedulerService(cluster.client, engine, Gates(), clock, random.Random(1))
            running = asyncio.create_task(service.run())
            try:
                await cluster.until("Pod", "a", when=lambda found: found["spec"].get("nodeName") == "n")
            finally:
                await service.stop()
                await running
        assert plugin.calls > 1

    asyncio.run(scenario())


def test_onward_time_never_goes_back_and_never_stands_still() -> None:
    class Dial:
        def __init__(self) -> None:
            self.day, self.steady = 1000.0, 5.0

        def now(self) -> float:
            return self.day

        def monotonic(self) -> float:
            return self.steady

    dial = Dial()
    time = MonotonicTime(dial)
    assert time.now() == 1000.0
    dial.day, dial.steady = 400.0, 7.0  # set back while two seconds went by
    assert time.now() == 1002.0
    dial.day, dial.steady = 5000.0, 8.0  # set forward
    assert time.now() == 5000.0


def test_a_clock_that_is_set_forward_is_reported_once() -> None:
    clock = SetClock()
    time = MonotonicTime(clock)
    time.now()
    assert time.take_jump() == 0
    clock.offset = HOUR
    time.now()
    assert time.take_jump() == pytest.approx(HOUR, abs=1)
    assert time.take_jump() == 0
    clock.offset = 0.0
    time.now()
    assert time.take_jump() == 0, "set back: it goes on from the latest time"
