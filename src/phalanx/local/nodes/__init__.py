"""Simulated nodes: topology, Node objects, heartbeats, and one kubelet for all of them."""

from phalanx.local.nodes.fleet import create_fleet
from phalanx.local.nodes.kubelet import KubeletOptions
from phalanx.local.nodes.simulation import SimulatedNodes
from phalanx.local.nodes.topology import Topology, parse_topology

__all__ = ["KubeletOptions", "SimulatedNodes", "Topology", "create_fleet", "parse_topology"]
