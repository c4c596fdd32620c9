"""A plugin that raises: its author finds the file and the line in the log."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from phalanx.base.clock import SystemClock
from phalanx.engine.engine import Engine
from phalanx.engine.framework.settings import EngineSettings, PluginUse, ProfileSettings
from phalanx.engine.plugins.registry import DEFAULT_PLUGINS
from phalanx.model.gates import Gates
from phalanx.serve.scheduler import SchedulerService
from support.in_process import inside


class Raises:
    name = "Raises"

    def filter(self, shape: object, node: object) -> None:
        raise KeyError("missing")


def test_file_and_line_of_a_plugin_that_raises_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        uses = (*(PluginUse(name) for name in DEFAULT_PLUGINS), PluginUse("Raises"))
        settings = EngineSettings(profiles=(ProfileSettings(plugins=uses),))
        engine = Engine(settings, plugins={"Raises": lambda args, handle: Raises()})
        async with inside(duties=False) as cluster:
            status: dict[str, Any] = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20"}}
            await cluster.create("Node", "n", status=status)
            for name in ("a", "b"):
                await cluster.create("Pod", name, spec={"containers": [{"name": "main", "image": "x"}]})
            service = SchedulerService(cluster.client, engine, Gates(), SystemClock(), random.Random(1))
            running = asyncio.create_task(service.run())
            try:
                for name in ("a", "b"):
                    await cluster.until("Pod", name, when=lambda found: found["status"].get("conditions"))
            finally:
                await service.stop()
                await running

    asyncio.run(scenario())
    logged = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    line = Raises.filter.__code__.co_firstlineno + 1
    assert len(logged) == 1, logged
    assert f"plugin Raises: KeyError: 'missing' (test_failing_plugins.py:{line})" in logged[0]
