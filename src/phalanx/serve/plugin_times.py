"""How long plugins take, measured around the engine, which has no clock: one that is slow is named.

Only plugins that come from elsewhere are measured. A plain filter is asked node by node, so what counts is the sum per
extension point between two looks: of one step of the engine, and the events before it. What a plugin answers is never
changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from phalanx.base.clock import Clock
from phalanx.engine.framework import Factory, Handle

log = logging.getLogger(__name__)

LIMIT = 0.1  # seconds
SAID_EVERY = 60.0  # seconds: the log names a plugin and point at most this often

# Methods that the engine calls, and the extension point they are of.
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
        """`limit`: seconds that a plugin may take at one extension point between two looks; 0: as long as it likes."""
        self._clock = clock
        self.limit = limit
        self._taken: dict[tuple[str, str], float] = {}
        self._said: dict[tuple[str, str], float] = {}
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

    def look(self) -> list[Slow]:
        """Return the plugins that exceeded the limit since the last call; log them and notify listeners."""
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
        if now - self._said.get(key, -SAID_EVERY) < SAID_EVERY:
            return
        self._said[key] = now
        log.warning(
            "plugin %s took %.0f ms at %s in one step of the scheduler, more than %.0f ms: every pod waits for it. "
            "phalanx_slow_plugin_steps_total counts how often.",
            slow.plugin, slow.seconds * 1e3, slow.point, self.limit * 1e3,
        )  # fmt: skip
