"""The parts of a local cluster's process, in start order.

A part is a function from the running API server to a component; it uses other parts only through its client.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial

from phalanx.controllers.cluster_mode.kueue import PlacementCheck
from phalanx.controllers.cluster_mode.provisioning_requests import ProvisioningRequests, class_name
from phalanx.engine.engine import Engine
from phalanx.local.nodes.autoscaler import Autoscaler
from phalanx.local.nodes.devices import parse_devices
from phalanx.local.nodes.fleet import Notify
from phalanx.local.nodes.node_groups import NodeGroup, parse_node_groups
from phalanx.local.nodes.simulation import SimulatedNodes
from phalanx.local.nodes.topology import Topology, parse_topology
from phalanx.serve.apiserver import ApiServer
from phalanx.serve.autoscaling import DemandSource
from phalanx.serve.cluster import ClusterSettings, Part
from phalanx.serve.component import Component, Loop
from phalanx.serve.controllers import ControllersService
from phalanx.serve.kueue_places import EnginePlaces
from phalanx.serve.leader_duties import Duty, admission_checks, provisioning, with_duties
from phalanx.serve.metrics.at_scrape import counter_text
from phalanx.serve.metrics.demand import DemandMetrics
from phalanx.serve.metrics.plugin_times import PluginTimes
from phalanx.serve.metrics.process import FAILURES
from phalanx.serve.metrics.scheduler import SchedulerMetrics
from phalanx.serve.queries.diagnostics import Diagnostics
from phalanx.serve.queries.paths import PATHS
from phalanx.serve.recording import next_recording
from phalanx.serve.scheduler import SchedulerOptions, SchedulerService

# Called with the scheduler before it starts, by views of its state.
Follow = Callable[[ApiServer, SchedulerService, Diagnostics], None]


def parts_of(settings: ClusterSettings, follow: Follow | None = None, notify: Notify | None = None) -> list[Part]:
    """Return the parts of a cluster. Raises ConfigProblem for an invalid setting, before anything starts.

    `notify`: called with the number of simulated nodes created so far.
    """
    parts: list[Part] = []
    groups = parse_node_groups(settings.autoscale, _topology(settings))
    source = DemandSource(groups, parse_devices(settings.devices) if settings.run_nodes else ())
    if settings.run_nodes:
        parts.append(simulated_nodes(settings, notify))
    if settings.run_controllers:
        parts.append(controllers)
    if settings.run_scheduler:
        parts.append(scheduler(settings, follow, source))
    if groups:
        parts.append(autoscaler(groups, source))
    if settings.provisioning:
        parts.append(provisioning_requests(class_name(settings.provisioning), source))
    return parts


def controllers(server: ApiServer) -> Component:
    service = ControllersService(server.client("phalanx-controllers"), server.context.clock, server.context.gates)
    server.measure(
        "controllers", lambda: counter_text("phalanx_controller_failures", FAILURES, "controller", service.failures())
    )
    return Loop("controllers", service.run, ready=service.ready.wait)


def autoscaler(groups: Sequence[NodeGroup], source: DemandSource) -> Part:
    def make(server: ApiServer) -> Component:
        part = Autoscaler(server.client("phalanx-autoscaler"), groups, source.ask, server.context.clock)
        return Loop("autoscaler", part.run, ready=part.ready.wait)

    return make


def provisioning_requests(class_: str, source: DemandSource) -> Part:
    def make(server: ApiServer) -> Component:
        client = server.client("phalanx-scheduler")
        requests = ProvisioningRequests(client, class_, source.lacking, server.context.clock)
        return Loop("provisioning", provisioning(requests).run)

    return make


def scheduler(settings: ClusterSettings, follow: Follow | None = None, source: DemandSource | None = None) -> Part:
    """Return the scheduler as a part. `source`: is connected to the scheduler and declares nodes of an autoscaler."""
    recordings = 0

    def make(server: ApiServer) -> Component:
        nonlocal recordings
        recordings += 1
        record = settings.record
        if record is not None and recordings > 1:
            record = next_recording(record)
        times = PluginTimes(server.context.clock, settings.slow_plugin)
        service = SchedulerService(
            server.client("phalanx-scheduler"),
            Engine(settings.scheduler.engine(), settings.server.gates, watch=times.watch),
            settings.server.gates,
            server.context.clock,
            random.Random(),  # system seed; event names are not secret
            SchedulerOptions(
                name=settings.scheduler.profiles[0].scheduler_name,
                record=record,
                record_head={"config": settings.scheduler_document, "gates": settings.server.gates.as_dict()},
                times=times,
                placement_lease=settings.placement_lease,
                dialects=settings.dialects,
            ),
        )
        diagnostics = Diagnostics(
            service.engine,
            server.client("phalanx-scheduler"),
            settings.server.gates,
            lambda: service.synced,
            server.context.clock.now,
            source.pools if source is not None else (),
        )
        if source is not None:
            source.follow(service, diagnostics)
        metrics = SchedulerMetrics(service)
        DemandMetrics(metrics.registry, service, diagnostics)
        server.measure("scheduler", metrics.text)
        for path in PATHS:
            server.answer_questions(path, diagnostics.answer)
        if follow is not None:
            follow(server, service, diagnostics)
        duties: list[Duty] = []
        if settings.kueue:
            places = EnginePlaces(service, settings.server.gates, diagnostics.priority_classes)
            check = PlacementCheck(server.client("phalanx-scheduler"), places, server.context.clock)
            duties.append(admission_checks(check))
        work = partial(with_duties, service.run, duties)
        return Loop("scheduler", work, ready=service.wait_synced, stop=service.stop)

    return make


def _topology(settings: ClusterSettings) -> Topology | None:
    spec = settings.topology or settings.usual_topology
    return parse_topology(spec) if spec else None


def simulated_nodes(settings: ClusterSettings, notify: Notify | None = None) -> Part:
    topology = _topology(settings)
    drivers = parse_devices(settings.devices)

    def make(server: ApiServer) -> Component:
        nodes = SimulatedNodes(
            server.client("phalanx-nodes"),
            settings.nodes,
            topology,
            usual=settings.usual_nodes,
            clock=server.context.clock,
            notify=notify,
            devices=drivers,
        )
        return Loop("nodes", nodes.run, ready=nodes.ready.wait)

    return make
