"""Which parts run in the process of a local cluster, in the order in which they start.

Every part is a function from the running API server to a component; it sees the others only through its client.
"""

from __future__ import annotations

from phalanx.local.nodes.simulation import SimulatedNodes
from phalanx.local.nodes.topology import parse_topology
from phalanx.serve.apiserver import ApiServer
from phalanx.serve.cluster import ClusterSettings, Part
from phalanx.serve.component import Component, Loop


def parts_of(settings: ClusterSettings) -> list[Part]:
    """Raises ConfigProblem when a setting makes no sense; nothing has started then."""
    parts: list[Part] = []
    if settings.run_nodes:
        parts.append(simulated_nodes(settings))
    return parts


def simulated_nodes(settings: ClusterSettings) -> Part:
    topology = parse_topology(settings.topology)

    def make(server: ApiServer) -> Component:
        nodes = SimulatedNodes(server.client("phalanx-nodes"), settings.nodes, topology, clock=server.context.clock)
        return Loop("nodes", nodes.run, ready=nodes.ready.wait)

    return make
