"""Build a profile: the plugins of one scheduler name, by extension point."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from phalanx.base.errors import ConfigProblem
from phalanx.engine.framework import interface as fw
from phalanx.engine.framework.options import (
    DeallocatesClaims,
    ObservesObjects,
    ObservesOutcomes,
    PluginOptions,
    SignsPods,
    options_of,
)
from phalanx.engine.framework.settings import PluginUse, ProfileSettings
from phalanx.engine.framework.traits import check, traits_of
from phalanx.engine.state.shapes import Shape

ENTRY_POINTS = "phalanx.plugins"

_AT_GROUPS = ("placementGenerate", "placementFeasible", "placementScore", "podGroupPostFilter")


class PodPlugins(NamedTuple):
    """The plugins of a profile that handle the pods of one shape, at the points that are called for every pod."""

    pre_enqueue: tuple[Any, ...]
    pre_filters: tuple[Any, ...]
    reserve: tuple[Any, ...]
    permit: tuple[Any, ...]
    pre_bind: tuple[Any, ...]


class Profile:
    def __init__(
        self,
        settings: ProfileSettings,
        plugins: Sequence[PluginUse],
        registry: Mapping[str, fw.Factory],
        handle: fw.Handle,
    ) -> None:
        self.scheduler_name = settings.scheduler_name
        self.reservations = settings.reservations
        self.handle = handle
        self.plugins: dict[str, Any] = {}
        self.pre_enqueue: list[Any] = []
        self.gatekeepers: dict[str, fw.Wake] = {}  # PreEnqueue plugins that are called again, and after which changes
        self.queue_sort: Any = None
        self.pre_filters: list[Any] = []
        self.filters: list[Any] = []
        self.row_filters: list[Any] = []  # filters whose verdict depends on one row only, resources first
        self.post_filters: list[Any] = []
        self.preempts = False  # one of these plugins requests the engine's own preemption
        self.scores: list[tuple[Any, int]] = []
        self.reserve: list[Any] = []
        self.permit: list[Any] = []
        self.pre_bind: list[Any] = []
        self.bind: list[Any] = []
        self.post_bind: list[Any] = []
        self.observers: list[ObservesObjects] = []
        self.outcome_observers: list[ObservesOutcomes] = []
        self.deallocators: list[DeallocatesClaims] = []
        self.signers: list[tuple[str, SignsPods]] = []  # with the plugin's name
        self.options: dict[str, PluginOptions] = {}  # by the plugin's name
        self._weights: dict[str, int] = {}
        self._for_shape: dict[Shape, PodPlugins] = {}
        self.groups: dict[str, list[Any]] = {point: [] for point in _AT_GROUPS}
        self._points: dict[str, list[Any]] = {  # in the order of the configuration
            "preEnqueue": self.pre_enqueue,
            "preFilter": self.pre_filters,
            "filter": self.filters,
            "postFilter": self.post_filters,
            "reserve": self.reserve,
            "permit": self.permit,
            "preBind": self.pre_bind,
            "bind": self.bind,
            "postBind": self.post_bind,
            **self.groups,
        }
        for at, use in enumerate(plugins):
            self._add(at, use, settings, registry, handle)
        local = [plugin for plugin in self.filters if self.options[plugin.name].filter_method != "track"]
        # True if a row without room for every request is certainly infeasible.
        fit = next((plugin for plugin in self.filters if traits_of(plugin).room), None)
        self.fit_is_strict = fit is not None and self.options[fit.name].strict
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
            where = f"profiles[{self.scheduler_name}].plugins[{at}]"
            check(plugin, where)
            for method, companion in fw.COMPANIONS.items():
                if hasattr(plugin, method) and not hasattr(plugin, companion):
                    raise ConfigProblem(where, f"plugin {use.name} has {method}() and lacks {companion}()")
            self.plugins[use.name] = plugin
            self.options[plugin.name] = options_of(plugin)
            if isinstance(plugin, ObservesObjects):
                self.observers.append(plugin)
            if isinstance(plugin, ObservesOutcomes):
                self.outcome_observers.append(plugin)
            if isinstance(plugin, DeallocatesClaims):
                self.deallocators.append(plugin)
            if isinstance(plugin, SignsPods):
                self.signers.append((plugin.name, plugin))
        self._put_to_work(plugin, use)

    def _put_to_work(self, plugin: Any, use: PluginUse) -> None:
        """Register a plugin at every point that is enabled and that it implements."""
        traits = traits_of(plugin)

        def wanted(point: str) -> bool:
            return (use.points is None or point in use.points) and bool(fw.way_of(plugin, point))

        for point, plugins in self._points.items():
            if wanted(point):
                plugins.append(plugin)
        if wanted("preEnqueue") and traits.gate_wakes:
            self.gatekeepers[plugin.name] = traits.gate_wakes
        if wanted("queueSort") and self.queue_sort is None:
            self.queue_sort = plugin
        preempts = traits.preempts and (use.points is None or "postFilter" in use.points)
        self.preempts = self.preempts or preempts
        if preempts and plugin not in self.post_filters:
            self.post_filters.append(plugin)
        if wanted("score"):
            self.scores.append((plugin, use.weight or traits.default_weight))
        if any(wanted(point) for point in _AT_GROUPS):
            self._weights[plugin.name] = use.weight or traits.default_weight

    def leave_out(self, name: str) -> None:
        """Remove a filter, for queries. Evaluations created before keep it."""
        for plugins in (self.pre_filters, self.filters, self.row_filters):
            plugins[:] = [plugin for plugin in plugins if plugin.name != name]
        self._for_shape.clear()

    def for_shape(self, shape: Shape) -> PodPlugins:
        """Return the plugins that handle pods of a shape. Most pods have neither volumes nor claims."""
        found = self._for_shape.get(shape)
        if found is None:
            points = (self.pre_enqueue, self.pre_filters, self.reserve, self.permit, self.pre_bind)
            found = self._for_shape[shape] = PodPlugins(
                *(tuple(each for each in plugins if traits_of(each).handles(shape)) for plugins in points)
            )
        return found

    def forget(self, shape: Shape) -> None:
        """Forget a shape that no pod has any more."""
        self._for_shape.pop(shape, None)

    def weight_of(self, name: str) -> int:
        """Return the weight of a plugin at a group point."""
        return self._weights[name]


def third_party(names: Iterable[str]) -> dict[str, fw.Factory]:
    """Return the factories of the named plugins from installed packages; import only those."""
    asked = set(names)
    found: dict[str, fw.Factory] = {}
    if not asked:  # reading the metadata of all installed packages takes longer than the rest of the startup
        return found
    for point in sorted(entry_points(group=ENTRY_POINTS), key=lambda each: each.name):
        if point.name in asked:
            found[point.name] = point.load()
    return found
