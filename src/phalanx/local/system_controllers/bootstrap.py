"""Create what every new cluster contains: system namespaces, system priority classes, and two ConfigMaps."""

from __future__ import annotations

import asyncio
from typing import Any

from phalanx.base.client import Client, Resource
from phalanx.base.errors import AlreadyExists
from phalanx.base.resources import CONFIG_MAPS, NAMESPACES, PRIORITY_CLASSES
from phalanx.base.well_known import NODE_LEASE_NAMESPACE

SYSTEM_NAMESPACES = ("default", NODE_LEASE_NAMESPACE, "kube-public", "kube-system")
SYSTEM_PRIORITIES = {
    "system-cluster-critical": (
        2_000_000_000,
        "For pods the cluster cannot do without, though they may move elsewhere.",
    ),
    "system-node-critical": (2_000_001_000, "For pods their node cannot do without; the highest priority there is."),
}


async def bootstrap(client: Client, ca: bytes | None, today: str) -> None:
    """Create missing objects; existing ones are not changed. ca: PEM of the authority of client certificates."""
    wanted: list[tuple[Resource, dict[str, Any]]] = []
    for name in SYSTEM_NAMESPACES:
        wanted.append((NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}))
    for name, (value, description) in SYSTEM_PRIORITIES.items():
        body = {
            "apiVersion": PRIORITY_CLASSES.api_version,
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": description,
        }
        wanted.append((PRIORITY_CLASSES, body))
    await asyncio.gather(*(ensure(client, resource, body) for resource, body in wanted))
    # Extension API servers read the first ConfigMap, kube-controller-manager the second.
    maps = {
        "extension-apiserver-authentication": {"client-ca-file": ca.decode()} if ca is not None else {},
        "kube-apiserver-legacy-service-account-token-tracking": {"since": today},
    }
    for name, data in maps.items():
        metadata = {"name": name, "namespace": "kube-system"}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        await ensure(client, CONFIG_MAPS, body)


async def ensure(client: Client, resource: Resource, body: dict[str, Any]) -> None:
    try:
        await client.create(resource, body, body["metadata"].get("namespace", ""))
    except AlreadyExists:
        return
