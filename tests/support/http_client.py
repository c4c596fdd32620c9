"""An HttpClient on the shared real API server, and a way to run coroutines in plain tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import pytest

from phalanx.base.client import Resource
from phalanx.kube.client import HttpClient
from phalanx.kube.config import load

if TYPE_CHECKING:
    from support.local_cluster import LocalCluster

PODS = Resource("", "v1", "pods", "Pod")
CONFIG_MAPS = Resource("", "v1", "configmaps", "ConfigMap")


@pytest.fixture
def run(server: LocalCluster) -> Callable[[Callable[[HttpClient], Awaitable[Any]]], Any]:
    """run(test): `test` is a coroutine function that gets a client."""

    def go(test: Callable[[HttpClient], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            async with HttpClient(load(server.kubeconfig)) as client:
                async with asyncio.timeout(60):
                    return await test(client)

        return asyncio.run(main())

    return go


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
