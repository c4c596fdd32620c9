"""Endpoints and EndpointSlices follow the pods that a Service selects."""

from __future__ import annotations

import asyncio
from typing import Any

from support.controller_world import Json, World, world
from support.manifests import apps_set, template


def service(name: str = "web", **spec: Any) -> Json:
    body = {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "web"}], **spec}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": body}


def web_servers(replicas: int) -> Json:
    pod = template("100m", app="web")
    pod["spec"]["containers"][0]["ports"] = [{"name": "web", "containerPort": 8080}]
    return apps_set("Deployment", "web", pod, replicas=replicas)


def ready(slices: list[Json], service: str = "web") -> list[str]:
    return sorted(
        address
        for entry in slices
        if (entry["metadata"].get("labels") or {}).get("kubernetes.io/service-name") == service
        for endpoint in entry.get("endpoints") or ()
        if endpoint["conditions"]["ready"]
        for address in endpoint["addresses"]
    )


def addresses(cluster: World) -> list[str]:
    return sorted(pod["status"]["podIP"] for pod in cluster.all("Pod") if "podIP" in pod["status"])


def test_a_service_has_the_addresses_of_its_ready_pods_and_loses_them() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(service())
            await cluster.eventually("EndpointSlice", len)
            await cluster.apply(web_servers(3))
            slices = await cluster.eventually("EndpointSlice", lambda found: len(ready(found)) == 3)
            assert ready(slices) == addresses(cluster)
            (mine,) = slices
            assert mine["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
            assert mine["metadata"]["ownerReferences"][0]["kind"] == "Service"
            assert mine["endpoints"][0]["targetRef"]["kind"] == "Pod" and mine["endpoints"][0]["nodeName"]
            endpoints = await cluster.until("Endpoints", "web", when=lambda e: len(e["subsets"][0]["addresses"]) == 3)
            assert endpoints["subsets"][0]["ports"] == [{"name": "http", "port": 8080, "protocol": "TCP"}]
            await cluster.patch("Deployment", "web", {"spec": {"replicas": 0}})
            await cluster.eventually("EndpointSlice", lambda found: not ready(found))
            await cluster.until("Endpoints", "web", when=lambda e: not e.get("subsets"))
            await cluster.delete("Service", "web")
            await cluster.gone("Endpoints", "web")
            await cluster.gone("EndpointSlice", mine["metadata"]["name"])

    asyncio.run(scenario())


def test_many_pods_are_dealt_to_slices_of_a_hundred_and_stay_there() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(service())
            await cluster.apply(web_servers(150))
            slices = await cluster.eventually("EndpointSlice", lambda found: len(ready(found)) == 150)
            sizes = sorted(len(e.get("endpoints") or ()) for e in slices)
            assert sizes[-1] <= 100 and sum(sizes) == 150
            assert ready(slices) == addresses(cluster)

    asyncio.run(scenario())


def test_endpoints_of_another_owner_are_left_alone() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            own = {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "db"}}
            own["subsets"] = [{"addresses": [{"ip": "192.0.2.7"}], "ports": [{"port": 5432}]}]
            body = service("db")
            del body["spec"]["selector"]
            await cluster.apply(body)
            await cluster.apply(own)
            await cluster.apply(service())
            await cluster.until("Endpoints", "web", when=lambda e: True)
            assert cluster.all("Endpoints")[0]["subsets"][0]["addresses"] == [{"ip": "192.0.2.7"}]

    asyncio.run(scenario())


MIRROR = "endpointslicemirroring-controller.k8s.io"


def mirrored(slices: list[Json]) -> list[Json]:
    by = "endpointslice.kubernetes.io/managed-by"
    return [entry for entry in slices if (entry["metadata"].get("labels") or {}).get(by) == MIRROR]


def test_endpoints_written_by_hand_are_found_as_slices() -> None:
    """As kube-controller-manager mirrors them: per ports and family, while the Service selects no pods."""

    async def scenario() -> None:
        async with world() as cluster:
            body = service("db")
            del body["spec"]["selector"]
            await cluster.apply(body)
            own: Json = {"apiVersion": "v1", "kind": "Endpoints", "metadata": {"name": "db", "labels": {"app": "db"}}}
            port = {"name": "sql", "port": 5432, "protocol": "TCP"}
            addresses = [{"ip": "192.0.2.7", "hostname": "one"}, {"ip": "2001:db8::7"}]
            own["subsets"] = [{"addresses": addresses, "notReadyAddresses": [{"ip": "192.0.2.8"}], "ports": [port]}]
            await cluster.apply(own)
            slices = mirrored(await cluster.eventually("EndpointSlice", lambda found: len(mirrored(found)) == 2))
            four, six = sorted(slices, key=lambda entry: str(entry["addressType"]))
            assert (four["addressType"], six["addressType"]) == ("IPv4", "IPv6")
            assert four["ports"] == [port]
            assert four["endpoints"] == [
                {"addresses": ["192.0.2.7"], "conditions": {"ready": True}, "hostname": "one"},
                {"addresses": ["192.0.2.8"], "conditions": {"ready": False}},
            ]
            assert four["metadata"]["labels"]["kubernetes.io/service-name"] == "db"
            assert four["metadata"]["labels"]["app"] == "db"
            assert four["metadata"]["ownerReferences"][0]["kind"] == "Endpoints"
            name = four["metadata"]["name"]
            changed = {"subsets": [{"addresses": [{"ip": "192.0.2.9"}], "ports": [port]}]}
            await cluster.patch("Endpoints", "db", changed)
            slices = await cluster.eventually("EndpointSlice", lambda found: ready(found, "db") == ["192.0.2.9"])
            assert [entry["metadata"]["name"] for entry in mirrored(slices)] == [name]
            skip = {"metadata": {"labels": {"endpointslice.kubernetes.io/skip-mirror": "true"}}}
            await cluster.patch("Endpoints", "db", skip)
            await cluster.eventually("EndpointSlice", lambda found: not mirrored(found))

    asyncio.run(scenario())
