"""The Service `kubernetes`: there from the start, with the address of the server, and back when it is deleted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

from support.controller_world import World, condition, play
from support.in_process import inside
from support.local_cluster import LocalCluster


def test_the_api_server_is_a_service_and_follows_its_port(
    start_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    for _ in range(2):  # the second start has another port
        cluster = start_cluster(data=tmp_path / "data", run_nodes=False, run_controllers=False, run_scheduler=False)
        port = urlsplit(cluster.url).port
        service = cluster.get("/api/v1/namespaces/default/services/kubernetes")
        assert (service["spec"]["clusterIP"], service["spec"]["ports"][0]["targetPort"]) == ("10.96.0.1", port)
        endpoints = cluster.get("/api/v1/namespaces/default/endpoints/kubernetes")
        assert endpoints["subsets"] == [
            {"addresses": [{"ip": "127.0.0.1"}], "ports": [{"name": "https", "port": port, "protocol": "TCP"}]}
        ]
        piece = cluster.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes")
        assert piece["ports"][0]["port"] == port and piece["endpoints"][0]["addresses"] == ["127.0.0.1"]
        range_ = cluster.get("/apis/networking.k8s.io/v1/servicecidrs/kubernetes")
        assert range_["spec"]["cidrs"] == ["10.96.0.0/12"] and range_["status"]["conditions"][0]["type"] == "Ready"
        cluster.call(cluster.cluster.stop())


def test_what_is_deleted_of_it_comes_back() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            for kind in ("Service", "Endpoints", "EndpointSlice", "ServiceCIDR"):
                where = "" if kind == "ServiceCIDR" else "default"
                found = await cluster.until(kind, "kubernetes", where, when=lambda obj: True)
                uid = found["metadata"]["uid"]
                await cluster.delete(kind, "kubernetes", where)
                await cluster.until(kind, "kubernetes", where, when=lambda obj, uid=uid: obj["metadata"]["uid"] != uid)

    asyncio.run(scenario())


def test_a_service_cidr_that_is_added_becomes_ready() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.create("ServiceCIDR", "more", "", spec={"cidrs": ["10.200.0.0/24"]})
        found = await cluster.until("ServiceCIDR", "more", "", when=lambda each: condition(each, "Ready"))
        assert condition(found, "Ready")["status"] == "True"

    play(scenario, nodes=0, scheduler=False, controllers=False)
