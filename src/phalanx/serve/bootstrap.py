"""Objects that every cluster has: the system namespaces and the two built-in priority classes."""

from __future__ import annotations

from typing import Any

from phalanx.base.client import Client, Resource
from phalanx.base.errors import AlreadyExists

NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_NAMESPACE = Resource("", "v1", "namespaces", "Namespace", False)
_PRIORITY = Resource("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", False)
_PRIORITIES = {"system-cluster-critical": 2_000_000_000, "system-node-critical": 2_000_001_000}


async def bootstrap(client: Client) -> None:
    """Idempotent: a restart finds what is there."""
    for name in NAMESPACES:
        await _ensure(client, _NAMESPACE, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    for name, value in _PRIORITIES.items():
        body = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": value,
            "description": "For system pods that the cluster cannot do without.",
        }
        await _ensure(client, _PRIORITY, body)


async def _ensure(client: Client, resource: Resource, body: dict[str, Any]) -> None:
    try:
        await client.create(resource, body)
    except AlreadyExists:
        return
