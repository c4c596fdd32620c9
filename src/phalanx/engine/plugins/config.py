"""Read KubeSchedulerConfiguration v1 (`kubescheduler.config.k8s.io/v1`) into frozen values.

`read_config(document)` takes the output of a YAML or JSON parser; `default_config()` is the meaning of an empty
document. Every unknown or invalid field raises a ConfigProblem whose path is the field in Kubernetes notation.
`SchedulerConfig.engine()` returns the part the engine needs. This module opens no files and loads no plugins.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

import msgspec

from phalanx.base.errors import ConfigProblem
from phalanx.base.well_known import DEFAULT_SCHEDULER
from phalanx.engine.framework.config_args import API, ARGS, PluginArgs
from phalanx.engine.framework.config_reader import Fields
from phalanx.engine.framework.interface import POINTS
from phalanx.engine.framework.settings import BACKFILLS, EngineSettings, PluginUse, ProfileSettings, ReservationSettings
from phalanx.engine.plugins.registry import DEFAULT_PLUGINS
from phalanx.model.groups.policy import DEFAULT, Policy, parse_spec
from phalanx.model.objects.groups import TypedLocalObjectReference
from phalanx.model.objects.policy import WorkloadPolicySpec

KIND = "KubeSchedulerConfiguration"
# Plugins of kube-scheduler whose work this engine does itself: enabling them has no effect.
ENGINE_PARTS = ("GangScheduling", "TopologyPlacementGenerator", "PodGroupPodsCount")
# Default plugins of kube-scheduler that do not exist here: they may be disabled but not enabled.
ABSENT_PLUGINS = ("NodeDeclaredFeatures", "DeferredPodScheduling")
REMOVED_PLUGINS = ("AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits")
MAX_WEIGHT = 2**31 - 1


class LeaderElection(msgspec.Struct, frozen=True):
    enabled: bool = True
    lease_duration: float = 15.0  # seconds
    renew_deadline: float = 10.0
    retry_period: float = 2.0
    lease_name: str = "phalanx-scheduler"  # differs from kube-scheduler's lease, so that both can run in one cluster
    lease_namespace: str = "kube-system"


class ClientConnection(msgspec.Struct, frozen=True):
    kubeconfig: str = ""
    qps: float = 0.0  # calls per second; 0 or less: no limit
    burst: int = 100
    content_type: str = ""
    accept_content_types: str = ""


class ProfileConfig(msgspec.Struct, frozen=True):
    """Configure one scheduler name: how pods with this schedulerName are placed."""

    scheduler_name: str = DEFAULT_SCHEDULER
    plugins: tuple[PluginUse, ...] = tuple(map(PluginUse, DEFAULT_PLUGINS))
    args: dict[str, PluginArgs] = msgspec.field(default_factory=dict)  # checked args of the configured plugins
    # the same args as written in the document
    raw_args: dict[str, dict[str, Any]] = msgspec.field(default_factory=dict)
    reservations: ReservationSettings = ReservationSettings()

    def settings(self) -> ProfileSettings:
        return ProfileSettings(self.scheduler_name, self.plugins, self.raw_args, self.reservations)


class SchedulerConfig(msgspec.Struct, frozen=True):
    profiles: tuple[ProfileConfig, ...] = (ProfileConfig(),)
    initial_backoff: float = 1.0  # seconds
    max_backoff: float = 10.0
    leader_election: LeaderElection = LeaderElection()
    client_connection: ClientConnection = ClientConnection()
    # Accepted without effect: all nodes are always evaluated at once.
    percentage_of_nodes_to_score: int | None = None
    parallelism: int = 16
    enable_profiling: bool = True
    enable_contention_profiling: bool = True
    delay_cache_until_active: bool = False
    policy_defaults: Policy = DEFAULT

    def engine(self, base: EngineSettings | None = None) -> EngineSettings:
        """Return the engine's settings. `base` provides those that KubeSchedulerConfiguration has no field for."""
        return replace(
            base or EngineSettings(),
            profiles=tuple(profile.settings() for profile in self.profiles),
            initial_backoff=self.initial_backoff,
            max_backoff=self.max_backoff,
            policy_defaults=self.policy_defaults,
        )

    def notes(self) -> tuple[str, ...]:
        """Return notes, for the log, on fields that are accepted but have no effect."""
        found = []
        if self.percentage_of_nodes_to_score is not None:
            found.append("percentageOfNodesToScore has no effect: every node is evaluated for every pod")
        if self.parallelism != 16:
            found.append("parallelism has no effect: nodes are evaluated as vectors, not by worker threads")
        return tuple(found)


def default_config() -> SchedulerConfig:
    return SchedulerConfig()


def read_config(document: object, known: Collection[str] = ()) -> SchedulerConfig:
    """Parse a document. `known`: names of additional installed plugins (third-party ones, found by entry point)."""
    fields = Fields(document)
    version = fields.text("apiVersion")
    if version != API:
        raise ConfigProblem("apiVersion", f'Unsupported value: "{version}": supported values: "{API}"')
    kind = fields.text("kind")
    if kind != KIND:
        raise ConfigProblem("kind", f'Unsupported value: "{kind}": supported values: "{KIND}"')
    plugins = frozenset((*DEFAULT_PLUGINS, *ARGS, *known))
    profiles = _profiles(fields, plugins)
    for path, _ in fields.items("extenders"):
        raise ConfigProblem(
            path,
            "extenders are not supported: write a plugin instead (see docs/plugins.md); "
            "an extender would make every decision wait for a remote call",
        )
    initial = fields.integer("podInitialBackoffSeconds", 1)
    if initial <= 0:
        raise ConfigProblem("podInitialBackoffSeconds", f"Invalid value: {initial}: must be greater than 0")
    longest = fields.integer("podMaxBackoffSeconds", 10)
    if longest < initial:
        text = f"Invalid value: {longest}: must be greater than or equal to PodInitialBackoffSeconds"
        raise ConfigProblem("podMaxBackoffSeconds", text)
    config = SchedulerConfig(
        profiles=profiles,
        initial_backoff=float(initial),
        max_backoff=float(longest),
        leader_election=_leader_election(fields.object("leaderElection")),
        client_connection=_client_connection(fields.object("clientConnection")),
        percentage_of_nodes_to_score=_percentage(fields),
        parallelism=fields.integer("parallelism", 16, 1),
        enable_profiling=fields.boolean("enableProfiling", True),
        enable_contention_profiling=fields.boolean("enableContentionProfiling", True),
        delay_cache_until_active=fields.boolean("delayCacheUntilActive"),
        policy_defaults=_policy_defaults(fields),
    )
    fields.done()
    return config


def _policy_defaults(fields: Fields) -> Policy:
    """Read `workloadPolicyDefaults`: the spec of a WorkloadPolicy without a target. kube-scheduler has no such
    field."""
    key = "workloadPolicyDefaults"
    spec = fields.typed(key, WorkloadPolicySpec)
    if spec is None:
        return DEFAULT
    if spec.target_ref != TypedLocalObjectReference():
        raise ConfigProblem(f"{key}.targetRef", "defaults have no target; write a WorkloadPolicy instead")
    parsed = parse_spec(spec)
    for problem in parsed.problems:
        raise ConfigProblem(key + problem.path.removeprefix("spec"), problem.message)
    return DEFAULT.with_fields(parsed.fields)


def _percentage(fields: Fields) -> int | None:
    key = "percentageOfNodesToScore"
    return fields.integer(key, 0, 0, 100) if fields.has(key) else None


def _leader_election(fields: Fields) -> LeaderElection:
    made = LeaderElection(
        enabled=fields.boolean("leaderElect", True),
        lease_duration=fields.seconds("leaseDuration", 15.0),
        renew_deadline=fields.seconds("renewDeadline", 10.0),
        retry_period=fields.seconds("retryPeriod", 2.0),
        lease_name=fields.text("resourceName", "phalanx-scheduler"),
        lease_namespace=fields.text("resourceNamespace", "kube-system"),
    )
    lock = fields.text("resourceLock", "leases")
    if made.enabled:
        if lock != "leases":
            raise ConfigProblem(fields.at("resourceLock"), 'resourceLock value must be "leases"')
        if made.retry_period <= 0:
            raise ConfigProblem(fields.at("retryPeriod"), "must be greater than zero")
        if made.lease_duration <= made.renew_deadline:
            raise ConfigProblem(fields.at("leaseDuration"), "LeaseDuration must be greater than RenewDeadline")
        if made.renew_deadline <= made.retry_period:
            raise ConfigProblem(fields.at("renewDeadline"), "must be greater than retryPeriod")
        if not made.lease_name or not made.lease_namespace:
            missing = "resourceNamespace" if made.lease_name else "resourceName"
            raise ConfigProblem(fields.at(missing), f"{missing} is required")
    fields.done()
    return made


def _client_connection(fields: Fields) -> ClientConnection:
    made = ClientConnection(
        kubeconfig=fields.text("kubeconfig"),
        qps=fields.number("qps", 0.0),
        burst=fields.integer("burst", 100, 0) or 100,
        content_type=fields.text("contentType"),
        accept_content_types=fields.text("acceptContentTypes"),
    )
    fields.done()
    return made


def _profiles(fields: Fields, known: frozenset[str]) -> tuple[ProfileConfig, ...]:
    entries = [(path, Fields(item, path)) for path, item in fields.items("profiles")]
    if not entries:
        return (ProfileConfig(),)
    found: dict[str, ProfileConfig] = {}
    for path, entry in entries:
        name = entry.text("schedulerName", DEFAULT_SCHEDULER if len(entries) == 1 else "")
        if not name:
            raise ConfigProblem(f"{path}.schedulerName", "Required value")
        if name in found:
            raise ConfigProblem(f"{path}.schedulerName", f'Duplicate value: "{name}"')
        _percentage(entry)
        plugins = _plugins(entry.object("plugins"), known)
        args, raw = _plugin_config(entry, known)
        reservations = _reservations(entry.object("reservations"))
        entry.done()
        found[name] = ProfileConfig(name, plugins, args, raw, reservations)
    sorters = [(path, _sorter(p.plugins)) for (path, _), p in zip(entries, found.values(), strict=True)]
    for path, sorter in sorters[1:]:
        if sorter != sorters[0][1]:
            raise ConfigProblem(f"{path}.plugins.queueSort", "must be the same for all profiles")
    return tuple(found.values())


def _reservations(fields: Fields) -> ReservationSettings:
    """Read `profiles[].reservations`, a Phalanx field that kube-scheduler does not have."""
    default = ReservationSettings()
    backfill = fields.text("backfill", default.backfill)
    if backfill not in BACKFILLS:
        supported = ", ".join(f'"{name}"' for name in BACKFILLS)
        raise ConfigProblem(fields.at("backfill"), f'Unsupported value: "{backfill}": supported values: {supported}')
    made = ReservationSettings(
        backfill=backfill,
        starvation_seconds=float(fields.integer("starvationSeconds", int(default.starvation_seconds), 0)),
        max_overtaken=fields.integer("maxOvertaken", default.max_overtaken, 0),
        max_reserved_fraction=_within(fields, "maxReservedFraction", default.max_reserved_fraction, 0.0, 1.0),
        strict_fifo=fields.boolean("strictFIFO", default.strict_fifo),
        max_reserved_fraction_per_namespace=_within(
            fields, "maxReservedFractionPerNamespace", default.max_reserved_fraction_per_namespace, 0.0, 1.0
        ),
        nodes_to_come_seconds=_within(fields, "nodesToComeSeconds", default.nodes_to_come_seconds, 0.0, 1e9),
        preemption_patience_seconds=_within(fields, "preemptionPatienceSeconds", 0.0, 0.0, 1e9),
        defer_evictions=fields.boolean("deferEvictions", default.defer_evictions),
        size_exponent=_within(fields, "sizeExponent", default.size_exponent, 0.0, 10.0),
        duration_exponent=_within(fields, "durationExponent", default.duration_exponent, 0.0, 10.0),
        promise_slack=_within(fields, "promiseSlack", default.promise_slack, 0.0, 100.0),
    )
    fields.done()
    return made


def _within(fields: Fields, key: str, default: float, low: float, high: float) -> float:
    value = fields.number(key, default)
    if not low <= value <= high:
        raise ConfigProblem(fields.at(key), f"Invalid value: {value:g}: must be between {low:g} and {high:g}")
    return value


def _plugin_config(profile: Fields, known: frozenset[str]) -> tuple[dict[str, PluginArgs], dict[str, dict[str, Any]]]:
    args: dict[str, PluginArgs] = {}
    raw: dict[str, dict[str, Any]] = {}
    for path, item in profile.items("pluginConfig"):
        entry = Fields(item, path)
        name = _known_name(entry, known)
        if name in raw:
            raise ConfigProblem(path, f'Duplicate value: "{name}"')
        given = entry.object("args").rest()
        if name in ARGS:
            args[name] = ARGS[name].read(given, f"{path}.args")
        raw[name] = given
        entry.done()
    return args, raw


def _known_name(entry: Fields, known: Iterable[str], *, disabling: bool = False) -> str:
    name = entry.text("name")
    path = entry.at("name")
    if not name:
        raise ConfigProblem(path, "Required value")
    if disabling and (name == "*" or name in ABSENT_PLUGINS):
        return name
    if name in ENGINE_PARTS:
        if disabling:
            raise ConfigProblem(path, f'"{name}" is part of the engine: switch off its feature gate instead')
        return name
    if name in ABSENT_PLUGINS:
        raise ConfigProblem(path, f'"{name}" is a plugin of kube-scheduler that does not exist here')
    if name in REMOVED_PLUGINS:
        raise ConfigProblem(path, f'Invalid value: "{name}": this plugin was removed from Kubernetes')
    if name not in known:
        raise ConfigProblem(path, f'unknown plugin "{name}": it is neither built in nor installed')
    return name


class _PointSet(msgspec.Struct):
    enabled: dict[str, int] = msgspec.field(default_factory=dict)  # name -> weight, 0 = not given
    disabled: set[str] = msgspec.field(default_factory=set)


def _point_set(fields: Fields, known: frozenset[str]) -> _PointSet:
    found = _PointSet()
    for path, item in fields.items("enabled"):
        entry = Fields(item, path)
        name = _known_name(entry, known)
        if name in found.enabled:
            raise ConfigProblem(f"{path}.name", f'Duplicate value: "{name}"')
        found.enabled[name] = entry.integer("weight", 0, 0, MAX_WEIGHT)
        entry.done()
    for name in ENGINE_PARTS:
        found.enabled.pop(name, None)
    for path, item in fields.items("disabled"):
        entry = Fields(item, path)
        found.disabled.add(_known_name(entry, known, disabling=True))
        entry.integer("weight", 0)
        entry.done()
    fields.done()
    return found


def _plugins(fields: Fields, known: frozenset[str]) -> tuple[PluginUse, ...]:
    """Return the default plugins without the disabled and with the enabled ones.

    A plugin enabled under multiPoint takes part in every point it implements; one enabled under a point only there.
    Disabling under multiPoint removes a default plugin; disabling under a point removes it from that point only.
    """
    multi = _point_set(fields.object("multiPoint"), known)
    points = {point: _point_set(fields.object(point), known) for point in POINTS}
    fields.done()
    weights: dict[str, int] = {}  # 0: the plugin's own default
    for name in DEFAULT_PLUGINS:
        # A default plugin that is enabled again keeps its position and takes the new weight.
        if name in multi.enabled or not ({name, "*"} & multi.disabled):
            weights[name] = multi.enabled.get(name, 0)
    if "*" in multi.disabled or multi.disabled & set(multi.enabled):
        # A plugin that is disabled and enabled again moves to its position in the enabled list.
        again = [n for n in multi.enabled if "*" in multi.disabled or n in multi.disabled]
        weights = {n: w for n, w in weights.items() if n not in again}
    for name, weight in multi.enabled.items():
        weights.setdefault(name, weight)
    everywhere = frozenset(POINTS)
    use: dict[str, frozenset[str]] = dict.fromkeys(weights, everywhere)
    for point, chosen in points.items():
        for name, at in use.items():
            if name in chosen.disabled or "*" in chosen.disabled:
                use[name] = at - {point}
        for name, weight in chosen.enabled.items():
            use[name] = use.get(name, frozenset()) | {point}
            weights.setdefault(name, 0)
            if weight and point == "score":
                weights[name] = weight
    made = tuple(PluginUse(name, weights[name], None if at == everywhere else at) for name, at in use.items() if at)
    if _sorter(made) is None:
        raise ConfigProblem(fields.at("queueSort"), "one queue sort plugin is needed: enable PrioritySort")
    if len(points["queueSort"].enabled) > 1:
        raise ConfigProblem(fields.at("queueSort.enabled"), "only one queue sort plugin can be enabled")
    return made


def _sorter(plugins: Iterable[PluginUse]) -> str | None:
    """Return the plugin that sorts the queue: one enabled for that point alone, else PrioritySort."""
    for use in plugins:
        if use.points is not None and "queueSort" in use.points and len(use.points) == 1:
            return use.name
    for use in plugins:
        if use.name == "PrioritySort" and (use.points is None or "queueSort" in use.points):
            return use.name
    return None
