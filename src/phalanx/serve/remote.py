"""A part of the control plane as a process of its own, speaking to an API server over HTTPS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from phalanx.base.client import Client
from phalanx.kube.client import HttpClient
from phalanx.kube.config import in_cluster, load
from phalanx.serve.component import Component


class Remote:
    """Start, wait, stop: one component behind a client of its own. Raises ConfigProblem at start."""

    def __init__(self, kubeconfig: str, context: str, make: Callable[[Client], Component], *, name: str) -> None:
        self._kubeconfig, self._context, self._make, self._name = kubeconfig, context, make, name
        self._client: HttpClient | None = None
        self._component: Component | None = None

    async def start(self) -> None:
        connection = load(self._kubeconfig, self._context) if self._kubeconfig else in_cluster()
        self._client = await HttpClient(connection, user_agent=self._name).__aenter__()
        self._component = self._make(self._client)
        await self._component.start()

    async def until_failure(self) -> None:
        if self._component is None or self._component.failed is None:
            await asyncio.Event().wait()
        else:
            await asyncio.shield(self._component.failed)

    async def stop(self) -> None:
        if self._component is not None:
            await self._component.stop()
        if self._client is not None:
            await self._client.__aexit__()
