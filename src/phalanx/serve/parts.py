"""The parts of a local cluster's process, in start order.

A part is a function from the running API server to a component; it uses other parts only through its client.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from phalanx.local.nodes.autoscaler import Autoscaler
from phalanx.local.nodes.devices import parse_devices
from phalanx.local.nodes.fleet import Fleet, Notify
from phalanx.local.nodes.node_groups import NodeGroup, parse_node_groups
from phalanx.local.nodes.simulation import SimulatedNodes
from phalanx.local.nodes.topology import Topology, parse_topology
from phalanx.serve.apiserver import ApiServer
from phalanx.serve.autoscaling import DemandSource
from phalanx.serve.cluster import ClusterSettings, Part
from phalanx.serve.component import Component, Loop
from phalanx.serve.controllers import ControllersService
from phalanx.serve.metrics.at_scrape import counter_text
from phalanx.serve.metrics.process import FAILURES
from phalanx.serve.queries.diagnostics import Diagnostics
from phalanx.serve.queries.paths import PATHS
from phalanx.serve.recording import next_recording
from phalanx.serve.scheduler import SchedulerService
from phalanx.serve.scheduler_parts import SchedulerParts, SchedulingSettings

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
        parts.append(scheduler(settings, source, follow))
    if groups:
        parts.append(autoscaler(groups, source))
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


def scheduler(settings: ClusterSettings, source: DemandSource, follow: Follow | None = None) -> Part:
    """Return the scheduler as a part. `source`: is connected to the scheduler and declares nodes of an autoscaler."""
    starts = 0

    def make(server: ApiServer) -> Component:
        nonlocal starts
        starts += 1
        scheduling: SchedulingSettings = msgspec.structs.replace(settings, pools=source.pools)
        if settings.record is not None and starts > 1:
            scheduling = msgspec.structs.replace(scheduling, record=next_recording(settings.record))
        client, clock = server.client("phalanx-scheduler"), server.context.clock
        made = SchedulerParts(client, scheduling, settings.server.gates, clock)
        source.follow(made.service, made.diagnostics)
        server.measure("scheduler", made.metrics.text)
        for path in PATHS:
            server.answer_questions(path, made.diagnostics.answer)
        if follow is not None:
            follow(server, made.service, made.diagnostics)
        return Loop("scheduler", made.run, ready=made.service.wait_synced, stop=made.service.stop)

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
            Fleet(settings.nodes, topology, settings.usual_nodes, drivers=drivers),
            clock=server.context.clock,
            notify=notify,
        )
        return Loop("nodes", nodes.run, ready=nodes.ready.wait)

    return make
