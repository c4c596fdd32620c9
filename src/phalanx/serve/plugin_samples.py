"""How long built-in and other plugins take: sampled, because the engine has no clock and asks plugins very often.

One step of the engine per second runs with the interpreter's profiling hook; all others cost nothing. The hook changes
no decision.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVar

from prometheus_client import CollectorRegistry

from phalanx.base.clock import Clock
from phalanx.engine.engine import Engine
from phalanx.serve.histograms import Histograms, exponential
from phalanx.serve.plugin_times import POINTS

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
        """Return True if the next step is to be sampled. `now`: monotonic seconds."""
        return now >= self._due

    def run(self, step: Callable[[], T]) -> T:
        """Run one step and count how long the plugins in it took."""
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
            if taken:  # a step in which no plugin was asked says nothing
                self._due = now() + SAMPLE_EVERY
            for point, seconds in taken.items():
                self._extension_points.observe(seconds, (point, "Success", self._profile))

    def _ended(self, frame: FrameType, seconds: float, taken: dict[str, float]) -> None:
        point = self._points[frame.f_code]
        plugin = frame.f_locals.get("self")
        self._plugins.observe(seconds, (str(plugin.name) if plugin is not None else "", point, "Success"))
        taken[point] = taken.get(point, 0.0) + seconds


def _points_of(engine: Engine) -> dict[CodeType, str]:
    """Return the extension point of every method of the plugins in use, as kube-scheduler spells it."""
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
