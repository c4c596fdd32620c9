"""A burst of binds: the engine handles outcomes together instead of one by one, and events come after the binds."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from phalanx.base.client import Call
from phalanx.base.clock import SystemClock
from phalanx.engine.engine import Engine
from phalanx.model.gates import Gates
from phalanx.serve.scheduler import SchedulerService
from support.in_process import inside

PODS = 400


def test_a_burst_takes_few_steps_and_its_events_come_last() -> None:
    steps: list[float] = []
    writes: list[str] = []

    async def scenario() -> None:
        async with inside(duties=False) as cluster:
            status: dict[str, Any] = {"allocatable": {"cpu": "400", "memory": "8Gi", "pods": str(PODS)}}
            await cluster.create("Node", "n", status=status)
            spec = {"containers": [{"name": "main", "image": "x"}]}
            await asyncio.gather(*(cluster.create("Pod", f"p{number}", spec=spec) for number in range(PODS)))
            straight, rng = cluster.client.call, random.Random(1)

            async def slow(call: Call) -> bytes:
                if call.subresource == "binding":
                    await asyncio.sleep(rng.uniform(0.01, 0.05))
                if call.verb == "create":
                    writes.append(call.subresource or call.resource.plural)
                return await straight(call)

            cluster.client.call = slow  # type: ignore[method-assign]
            service = SchedulerService(cluster.client, Engine(), Gates(), SystemClock(), random.Random(1))
            service.on_step.append(steps.append)
            running = asyncio.create_task(service.run())
            async with asyncio.timeout(60):
                while writes.count("binding") < PODS or service.executor.in_flight:
                    await asyncio.sleep(0.05)
                during = len(steps)
                await service.recorder.flush()
            await service.stop()
            await running
            assert during < PODS / 4

    asyncio.run(scenario())
    assert writes.count("events") == PODS
    assert "events" not in writes[: PODS - 64]
