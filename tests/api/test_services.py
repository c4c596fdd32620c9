"""Addresses and node ports of Services: each given out once."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.base.errors import Invalid
from support.api_world import MERGE, World

SERVICES = "/api/v1/namespaces/ns/services"


def service(name: str, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": {"ports": [{"port": 80}], **spec}}


def test_no_two_services_share_an_address(world: World) -> None:
    addresses = [world.create(SERVICES, service(f"s{n}"))["spec"]["clusterIP"] for n in range(300)]
    assert len(set(addresses)) == 300 and "10.96.0.1" not in addresses
    with pytest.raises(Invalid, match="provided IP is already allocated"):
        world.create(SERVICES, service("thief", clusterIP=addresses[0]))
    world.delete(f"{SERVICES}/s0")
    assert world.create(SERVICES, service("heir", clusterIP=addresses[0]))["spec"]["clusterIPs"] == [addresses[0]]
    with pytest.raises(Invalid, match="not in the valid range"):
        world.create(SERVICES, service("far", clusterIP="192.168.1.1"))
    assert world.create(SERVICES, service("headless", clusterIP="None"))["spec"]["clusterIP"] == "None"


def test_node_ports_are_given_out_once_and_given_back(world: World) -> None:
    ports = [
        world.create(SERVICES, service(f"n{n}", type="NodePort"))["spec"]["ports"][0]["nodePort"] for n in range(50)
    ]
    assert len(set(ports)) == 50 and all(30000 <= port <= 32767 for port in ports)
    wanted = {"ports": [{"port": 80, "nodePort": ports[0]}], "type": "NodePort"}
    with pytest.raises(Invalid, match="provided port is already allocated"):
        world.create(SERVICES, {"metadata": {"name": "thief"}, "spec": wanted})
    kept = world.patch(f"{SERVICES}/n0", {"metadata": {"labels": {"a": "b"}}}, MERGE)
    assert kept["spec"]["ports"][0]["nodePort"] == ports[0]
    closed = world.patch(f"{SERVICES}/n0", {"spec": {"type": "ClusterIP"}}, MERGE)
    assert "nodePort" not in closed["spec"]["ports"][0]
    assert (
        world.create(SERVICES, {"metadata": {"name": "heir"}, "spec": wanted})["spec"]["ports"][0]["nodePort"]
        == ports[0]
    )
    with pytest.raises(Invalid, match="range of valid ports is 30000-32767"):
        world.create(SERVICES, service("low", type="NodePort", ports=[{"port": 80, "nodePort": 80}]))
    balanced = world.create(SERVICES, service("lb", type="LoadBalancer", allocateLoadBalancerNodePorts=False))
    assert "nodePort" not in balanced["spec"]["ports"][0]


def test_a_plain_service_may_not_name_a_node_port(world: World) -> None:
    with pytest.raises(Invalid, match="nodePort"):
        world.create(SERVICES, service("plain", ports=[{"port": 80, "nodePort": 30001}]))


def test_addresses_of_an_added_service_cidr_may_be_asked_for(world: World) -> None:
    cidrs = "/apis/networking.k8s.io/v1/servicecidrs"
    with pytest.raises(Invalid, match="not in the valid range"):
        world.create(SERVICES, service("early", clusterIP="10.200.0.7"))
    world.create(cidrs, {"metadata": {"name": "more"}, "spec": {"cidrs": ["10.200.0.0/24"]}})
    assert world.create(SERVICES, service("now", clusterIP="10.200.0.7"))["spec"]["clusterIP"] == "10.200.0.7"
    with pytest.raises(Invalid, match="provided IP is already allocated"):
        world.create(SERVICES, service("thief", clusterIP="10.200.0.7"))
