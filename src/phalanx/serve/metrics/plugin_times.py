"""Measure plugin times outside the engine, which has no clock, and report slow plugins.

Times of external plugins are summed per extension point over one engine step and the events before it. For metrics of
all plugins, one step per second runs with the interpreter's profiling hook; other steps have no overhead. Measuring
changes no result.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple, TypeVar

from prometheus_client import CollectorRegistry

from phalanx.base.clock import Clock
from phalanx.engine.engine import Engine
from phalanx.engine.framework import Factory, Handle
from phalanx.serve.metrics.histograms import Histograms, exponential

log = logging.getLogger(__name__)

LIMIT = 0.1  # seconds
LOG_EVERY_SECONDS = 60.0  # seconds between two log lines about a plugin and point

# Methods called by the engine -> extension point.
POINTS = {
    "sign": "sign",
    "observe": "observe",
    "outcome": "observe",
    "pre_enqueue": "preEnqueue",
    "sort_key": "queueSort",
    "pre_filter": "preFilter",
    "filter": "filter",
    "mask": "filter",
    "mask_row": "filter",
    "mask_rows": "filter",
    "explain": "filter",
    "track": "filter",
    "post_filter": "postFilter",
    "score": "score",
    "scores": "score",
    "score_row": "score",
    "score_rows": "score",
    "track_score": "score",
    "reserve": "reserve",
    "unreserve": "reserve",
    "permit": "permit",
    "pre_bind": "preBind",
    "bind": "bind",
    "post_bind": "postBind",
    "generate": "placementGenerate",
    "feasible": "placementFeasible",
    "score_placement": "placementScore",
    "pod_group_post_filter": "podGroupPostFilter",
}
_OF_TRACKER = ("rebuild", "update", "explain", "set_feasible", "affects_other_nodes")
_MAKES_TRACKER = ("track", "track_score")


class Slow(NamedTuple):
    plugin: str
    point: str
    seconds: float


class PluginTimes:
    def __init__(self, clock: Clock, limit: float = LIMIT) -> None:
        """`limit`: seconds allowed per plugin and extension point between two measurements; 0: no limit."""
        self._clock = clock
        self.limit = limit
        self._taken: dict[tuple[str, str], float] = {}
        self._logged_at: dict[tuple[str, str], float] = {}
        self.on_slow: list[Callable[[Slow], None]] = []

    def watch(self, name: str, factory: Factory) -> Factory:
        """Return a factory whose plugins are measured."""
        if not self.limit:
            return factory

        def make(args: Mapping[str, Any], handle: Handle) -> Any:
            plugin = factory(args, handle)
            for method, point in POINTS.items():
                self._measure(plugin, method, (name, point))
            return plugin

        return make

    def _measure(self, thing: Any, method: str, key: tuple[str, str]) -> None:
        call = getattr(thing, method, None)
        if not callable(call):
            return
        now, taken = self._clock.monotonic, self._taken

        def measured(*args: Any, **kwargs: Any) -> Any:
            began = now()
            try:
                answer = call(*args, **kwargs)
            finally:
                taken[key] = taken.get(key, 0.0) + now() - began
            if method in _MAKES_TRACKER and answer is not None:
                for each in _OF_TRACKER:
                    self._measure(answer, each, key)
            return answer

        try:
            setattr(thing, method, measured)
        except AttributeError:
            log.info("plugin %s: its %s is not measured: the object takes no attributes", key[0], method)

    def report_slow(self) -> list[Slow]:
        """Return plugins over the limit since the last call; log them and notify listeners."""
        if not self._taken:
            return []
        found = [Slow(*key, seconds) for key, seconds in self._taken.items() if seconds > self.limit]
        self._taken.clear()
        for slow in found:
            for listener in self.on_slow:
                listener(slow)
            self._notify(slow)
        return found

    def _notify(self, slow: Slow) -> None:
        key, now = (slow.plugin, slow.point), self._clock.monotonic()
        if now - self._logged_at.get(key, -LOG_EVERY_SECONDS) < LOG_EVERY_SECONDS:
            return
        self._logged_at[key] = now
        log.warning(
            "plugin %s took %.0f ms at %s in one step of the scheduler, more than %.0f ms: every pod waits for it. "
            "phalanx_slow_plugin_steps_total counts how often.",
            slow.plugin, slow.seconds * 1e3, slow.point, self.limit * 1e3,
        )  # fmt: skip


T = TypeVar("T")

SAMPLE_EVERY = 1.0  # seconds between two sampled steps


class PluginSamples:
    def __init__(self, engine: Engine, clock: Clock, profile: str, registry: CollectorRegistry) -> None:
        self._clock, self._profile = clock, profile
        self._due = 0.0
        self._points = _points_of(engine)
        self._plugins = Histograms(
            "scheduler_plugin_execution_duration_seconds",
            "Duration of one call of a plugin at an extension point, in sampled steps.",
            ["plugin", "extension_point", "status"],
            exponential(0.00001, 1.5, 20),
            registry,
        )
        self._extension_points = Histograms(
            "scheduler_framework_extension_point_duration_seconds",
            "Duration of all plugins of an extension point together in one sampled step.",
            ["extension_point", "status", "profile"],
            exponential(0.0001, 2, 12),
            registry,
        )

    def due(self, now: float) -> bool:
        """Return True if the next step is to be sampled: not while a profiler runs. `now`: monotonic seconds."""
        return now >= self._due and sys.getprofile() is None

    def run(self, step: Callable[[], T]) -> T:
        """Run one step and record the times of its plugins."""
        now, points = self._clock.monotonic, self._points
        began: dict[FrameType, float] = {}
        taken: dict[str, float] = {}

        def hook(frame: FrameType, event: str, _: object) -> None:
            if event == "call":
                if frame.f_code in points:
                    began[frame] = now()
            elif event == "return" and began:
                start = began.pop(frame, None)
                if start is not None:
                    self._ended(frame, now() - start, taken)

        before = sys.getprofile()
        sys.setprofile(hook)
        try:
            return step()
        finally:
            sys.setprofile(before)
            if taken:  # skip steps without a plugin call
                self._due = now() + SAMPLE_EVERY
            for point, seconds in taken.items():
                self._extension_points.observe(seconds, (point, "Success", self._profile))

    def _ended(self, frame: FrameType, seconds: float, taken: dict[str, float]) -> None:
        point = self._points[frame.f_code]
        plugin = frame.f_locals.get("self")
        self._plugins.observe(seconds, (str(plugin.name) if plugin is not None else "", point, "Success"))
        taken[point] = taken.get(point, 0.0) + seconds


def _points_of(engine: Engine) -> dict[CodeType, str]:
    """Return the extension point of every method of active plugins, with kube-scheduler's names."""
    found: dict[CodeType, str] = {}
    for profile in engine.profiles.values():
        for plugin in profile.plugins.values():
            for method, point in POINTS.items():
                code = _code_of(type(plugin), method)
                if code is not None and point != "observe":
                    found[code] = point[0].upper() + point[1:]
    return found


def _code_of(kind: type[Any], method: str) -> CodeType | None:
    for each in kind.__mro__:
        function = vars(each).get(method)
        if isinstance(function, FunctionType):
            return function.__code__
    return None
