"""Simulated nodes: topology, Node objects, heartbeats, and one kubelet for all of them."""

from phalanx.local.nodes.fleet import Fleet
from phalanx.local.nodes.kubelet import KubeletOptions
from phalanx.local.nodes.simulation import SimulatedNodes
from phalanx.local.nodes.topology import Topology, parse_topology

__all__ = ["Fleet", "KubeletOptions", "SimulatedNodes", "Topology", "parse_topology"]
