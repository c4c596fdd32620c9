"""A plugin that takes long is named in the log and in a metric; others are not, and what it answers stays the same."""

from __future__ import annotations

import asyncio
import cProfile
import logging
import random
import time
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from phalanx.base.clock import SystemClock
from phalanx.engine.engine import Engine
from phalanx.engine.framework import Code, Status
from phalanx.engine.framework.settings import EngineSettings, PluginUse, ProfileSettings
from phalanx.engine.plugins.registry import DEFAULT_PLUGINS
from phalanx.model.gates import Gates
from phalanx.serve.metrics.plugin_times import PluginSamples, PluginTimes
from phalanx.serve.metrics.scheduler import SchedulerMetrics
from phalanx.serve.scheduler import SchedulerOptions, SchedulerService
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod
from support.in_process import inside
from support.manual_clock import ManualClock


def engine_with(times: PluginTimes, **plugins: Any) -> Engine:
    uses = (*(PluginUse(name) for name in DEFAULT_PLUGINS), *(PluginUse(name) for name in plugins))
    made = {name: lambda args, handle, plugin=plugin: plugin for name, plugin in plugins.items()}
    return Engine(EngineSettings(profiles=(ProfileSettings(plugins=uses),)), plugins=made, watch=times.watch)


class Picky:
    """Looks at one node after the other, which takes its time, and wants a label."""

    name = "Picky"

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def filter(self, shape: Any, node: Any) -> Status | None:
        self.clock.advance(self.seconds)
        return None if node.labels.get("good") else Status(Code.UNSCHEDULABLE, ("node(s) were not good",))


class Counting:
    """A tracking filter: what its trackers do is its own time too."""

    name = "Counting"

    def __init__(self, clock: ManualClock, seconds: float) -> None:
        self.clock, self.seconds = clock, seconds

    def track(self, shape: Any, columns: Any) -> Any:
        plugin = self

        class Tracker:
            def rebuild(self) -> None:
                plugin.clock.advance(plugin.seconds)
                self.mask = columns.alive.copy()

            def update(self, changes: Any) -> None:
                self.rebuild()

            def explain(self, rows: Any) -> list[Any]:
                return []

        return Tracker()


def test_what_counts_is_the_sum_over_the_nodes_of_a_step(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    times = PluginTimes(clock, limit=0.1)
    cluster = Cluster(engine_with(times, Picky=Picky(clock, 0.03)))
    cluster.see(*(node(f"n{i}").cpu("4") for i in range(4)), node("n4").cpu("4").label("good", "yes"))
    cluster.see(pod("a").cpu("1")).step()
    assert cluster.bound == {"a": "n4"}
    with caplog.at_level(logging.WARNING):
        (slow,) = times.report_slow()
    assert (slow.plugin, slow.point) == ("Picky", "filter") and slow.seconds == pytest.approx(5 * 0.03, rel=1e-3)
    assert "plugin Picky took" in caplog.text and "at filter" in caplog.text
    assert times.report_slow() == [], "only what happened since the last look"


def test_a_quick_plugin_is_not_named(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    times = PluginTimes(clock, limit=0.1)
    cluster = Cluster(engine_with(times, Picky=Picky(clock, 0.001)))
    cluster.see(node("n").cpu("4").label("good", "yes"), pod("a").cpu("1")).step()
    with caplog.at_level(logging.WARNING):
        assert times.report_slow() == []
    assert not caplog.text


def test_the_log_names_it_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    times = PluginTimes(clock, limit=0.1)
    heard: list[str] = []
    times.on_slow.append(lambda slow: heard.append(slow.plugin))
    cluster = Cluster(engine_with(times, Counting=Counting(clock, 0.2)))
    cluster.see(node("n").cpu("9"))
    with caplog.at_level(logging.WARNING):
        for number in range(4):
            cluster.see(pod(f"p{number}").cpu("1")).step()
            assert [slow.point for slow in times.report_slow()] == ["filter"]
            clock.advance(25.0)
    assert heard == ["Counting"] * 4, "the metric counts every time"
    assert caplog.text.count("plugin Counting took") == 2


def test_a_really_slow_plugin_is_in_the_metrics_of_the_scheduler(caplog: pytest.LogCaptureFixture) -> None:
    class Sleepy:
        name = "Sleepy"

        def filter(self, shape: Any, node: Any) -> None:
            time.sleep(0.03)

    async def scenario() -> bytes:
        times = PluginTimes(SystemClock(), limit=0.02)
        engine = engine_with(times, Sleepy=Sleepy())
        async with inside(duties=False) as cluster:
            status: dict[str, Any] = {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "20"}}
            await cluster.create("Node", "n", status=status)
            await cluster.create("Pod", "a", spec={"containers": [{"name": "main", "image": "x"}]})
            options = SchedulerOptions(times=times)
            service = SchedulerService(cluster.client, engine, Gates(), SystemClock(), random.Random(1), options)
            metrics = SchedulerMetrics(service)
            running = asyncio.create_task(service.run())
            try:
                await cluster.until("Pod", "a", when=lambda found: found["spec"].get("nodeName") == "n")
            finally:
                await service.stop()
                await running
            return metrics.text()

    with caplog.at_level(logging.WARNING):
        text = asyncio.run(scenario()).decode()
    (line,) = [line for line in text.splitlines() if line.startswith("phalanx_slow_plugin_steps_total{")]
    assert 'plugin="Sleepy"' in line and 'extension_point="filter"' in line and float(line.rpartition(" ")[2]) >= 1
    assert "plugin Sleepy took" in caplog.text


def test_nothing_is_sampled_while_a_profiler_runs() -> None:
    """The interpreter has one profile function, and a C profiler cannot be put back."""
    samples = PluginSamples(Engine(), ManualClock(), "default-scheduler", CollectorRegistry())
    assert samples.due(1.0)
    with cProfile.Profile():
        assert not samples.due(1.0)
    assert samples.due(1.0)
