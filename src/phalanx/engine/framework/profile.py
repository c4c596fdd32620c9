"""A profile: the plugins that serve one scheduler name, sorted by extension point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any

from phalanx.base.errors import ConfigProblem
from phalanx.engine.framework import interface as fw
from phalanx.engine.framework.settings import PluginUse, ProfileSettings
from phalanx.engine.framework.traits import check, traits_of

ENTRY_POINTS = "phalanx.plugins"

_FILTERS = (fw.TrackingFilter, fw.VectorFilter, fw.NodeFilter)
_SCORES = (fw.TrackingScore, fw.VectorScore, fw.NodeScore)


class Profile:
    def __init__(self, settings: ProfileSettings, registry: Mapping[str, fw.Factory], handle: fw.Handle) -> None:
        self.scheduler_name = settings.scheduler_name
        self.handle = handle
        self.plugins: dict[str, Any] = {}
        self.pre_enqueue: list[Any] = []
        self.gatekeepers: dict[str, fw.Wake] = {}  # PreEnqueue plugins that want to be asked again, and after what
        self.queue_sort: Any = None
        self.pre_filters: list[Any] = []
        self.filters: list[Any] = []
        self.row_filters: list[Any] = []  # those whose verdict depends on one row only, resources first
        self.post_filters: list[Any] = []
        self.preempts = False  # a plugin among them asks for the engine's own preemption
        self.scores: list[tuple[Any, int]] = []
        self.reserve: list[Any] = []
        self.permit: list[Any] = []
        self.pre_bind: list[Any] = []
        self.bind: list[Any] = []
        self.post_bind: list[Any] = []
        self.observers: list[Any] = []
        self.signers: list[Any] = []
        self._weights: dict[str, int] = {}
        self.groups: dict[str, list[Any]] = {
            "placementGenerate": [], "placementFeasible": [], "placementScore": [], "podGroupPostFilter": [],
        }  # fmt: skip
        for at, use in enumerate(settings.plugins):
            self._add(at, use, settings, registry, handle)
        local = [plugin for plugin in self.filters if not isinstance(plugin, fw.TrackingFilter)]
        # Whether a row without room for every request is certainly infeasible.
        fit = next((plugin for plugin in self.filters if traits_of(plugin).room), None)
        self.fit_is_strict: bool = getattr(fit, "strict", False)
        self.row_filters = sorted(local, key=lambda plugin: not traits_of(plugin).room)

    def _add(
        self,
        at: int,
        use: PluginUse,
        settings: ProfileSettings,
        registry: Mapping[str, fw.Factory],
        handle: fw.Handle,
    ) -> None:
        plugin = self.plugins.get(use.name)
        if plugin is None:
            factory = registry.get(use.name)
            if factory is None:
                raise ConfigProblem(
                    f"profiles[{self.scheduler_name}].plugins[{at}].name", f"there is no plugin {use.name!r}"
                )
            plugin = factory(settings.args.get(use.name, {}), handle)
            check(plugin, f"profiles[{self.scheduler_name}].plugins[{at}]")
            self.plugins[use.name] = plugin
            if isinstance(plugin, fw.Observer):
                self.observers.append(plugin)
            if isinstance(plugin, fw.Signs):
                self.signers.append(plugin)

        def wanted(point: str, *kinds: Any) -> bool:
            return (use.points is None or point in use.points) and isinstance(plugin, kinds)

        if wanted("preEnqueue", fw.PreEnqueue):
            self.pre_enqueue.append(plugin)
            wakes = getattr(plugin, "gate_wakes", fw.Wake.NOTHING)
            if wakes:
                self.gatekeepers[plugin.name] = wakes
        if wanted("queueSort", fw.QueueSort) and self.queue_sort is None:
            self.queue_sort = plugin
        if wanted("preFilter", fw.PreFilter):
            self.pre_filters.append(plugin)
        if wanted("filter", *_FILTERS):
            self.filters.append(plugin)
        preempts = traits_of(plugin).preempts and (use.points is None or "postFilter" in use.points)
        self.preempts = self.preempts or preempts
        if preempts or wanted("postFilter", fw.PostFilter):
            self.post_filters.append(plugin)
        if wanted("score", *_SCORES):
            self.scores.append((plugin, use.weight or getattr(plugin, "default_weight", 1)))
        if wanted("reserve", fw.Reserve):
            self.reserve.append(plugin)
        if wanted("permit", fw.Permit):
            self.permit.append(plugin)
        if wanted("preBind", fw.PreBind):
            self.pre_bind.append(plugin)
        if wanted("bind", fw.Bind):
            self.bind.append(plugin)
        if wanted("postBind", fw.PostBind):
            self.post_bind.append(plugin)
        for point, kind in (
            ("placementGenerate", fw.PlacementGenerate),
            ("placementFeasible", fw.PlacementFeasible),
            ("placementScore", fw.PlacementScore),
            ("podGroupPostFilter", fw.PodGroupPostFilter),
        ):
            if wanted(point, kind):
                self.groups[point].append(plugin)
                self._weights[plugin.name] = use.weight or getattr(plugin, "default_weight", 1)

    def weight_of(self, name: str) -> int:
        """Of a plugin at a group point."""
        return self._weights[name]


def third_party(names: Iterable[str]) -> dict[str, fw.Factory]:
    """Factories of the named plugins that installed packages offer; only those named are imported."""
    asked = set(names)
    found: dict[str, fw.Factory] = {}
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda each: each.name):
        if point.name in asked:
            found[point.name] = point.load()
    return found
