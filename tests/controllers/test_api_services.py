"""APIServices: one for every group and version served here, and no others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phalanx.base.client import Resource
from phalanx.base.errors import NotFound
from support.in_process import inside

DEFINITIONS = Resource("apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", False)
SCHEMA = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}


def definition(*versions: str) -> dict[str, Any]:
    listed = [{"name": v, "served": True, "storage": v == versions[0], "schema": SCHEMA} for v in versions]
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "tools.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "tools", "kind": "Tool"},
            "versions": listed,
        },
    }


def test_what_is_served_is_listed_and_comes_and_goes_with_definitions() -> None:
    def anything(body: dict[str, Any]) -> bool:
        return True

    async def scenario() -> None:
        async with inside() as cluster:
            core = await cluster.until("APIService", "v1.", "", when=anything)
            assert core["spec"] == {"version": "v1", "groupPriorityMinimum": 18000, "versionPriority": 1}
            (condition,) = core["status"]["conditions"]
            assert (condition["type"], condition["status"], condition["reason"]) == ("Available", "True", "Local")
            await cluster.until("APIService", "v1beta1.scheduling.k8s.io", "", when=anything)

            await cluster.client.create(DEFINITIONS, definition("v1", "v1beta1"))
            for name in ("v1.example.com", "v1beta1.example.com"):
                made = await cluster.until("APIService", name, "", when=anything)
                assert made["metadata"]["labels"] == {"kube-aggregator.kubernetes.io/automanaged": "true"}

            uid = made["metadata"]["uid"]
            await cluster.delete("APIService", "v1beta1.example.com", "")
            await cluster.until(
                "APIService", "v1beta1.example.com", "", when=lambda body: body["metadata"]["uid"] != uid
            )

            foreign = {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": "v1.metrics.k8s.io"},
                "spec": {
                    "group": "metrics.k8s.io",
                    "version": "v1",
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "service": {"name": "metrics", "namespace": "kube-system"},
                },
            }
            kept = await cluster.client.create(cluster.resource("APIService"), foreign)
            assert b"Available" not in kept, "it is never asked, so its state is unknown"
            await cluster.client.delete(DEFINITIONS, "tools.example.com")
            await cluster.gone("APIService", "v1.example.com", "")
            await cluster.until("APIService", "v1.metrics.k8s.io", "", when=anything)
            with pytest.raises(NotFound):
                await cluster.client.get(cluster.resource("APIService"), "v1.apiregistration.k8s.io")

    asyncio.run(scenario())
