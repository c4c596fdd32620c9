"""Simulated nodes as one component, in the process of an API server or with a kubeconfig."""

from __future__ import annotations

import asyncio

from phalanx.base.client import Client
from phalanx.base.clock import Clock, SystemClock
from phalanx.base.tasks import run_all
from phalanx.local.nodes.device_publisher import DevicePublisher
from phalanx.local.nodes.fleet import Fleet, Notify, create_copies, create_fleet
from phalanx.local.nodes.heartbeats import Heartbeats
from phalanx.local.nodes.kubelet import KubeletOptions, SimulatedKubelet


class SimulatedNodes:
    """`run` until cancelled; `ready` is set when all nodes exist and their kubelet runs."""

    def __init__(
        self,
        client: Client,
        fleet: Fleet,
        *,
        clock: Clock | None = None,
        options: KubeletOptions | None = None,
        notify: Notify | None = None,
    ) -> None:
        """`notify`: called with the numbers of nodes created and missing."""
        self.ready = asyncio.Event()
        self._client = client
        self._fleet = fleet
        self._devices = DevicePublisher(client, fleet.drivers)
        self._notify: Notify = notify or (lambda done, total: None)
        self._clock = clock or SystemClock()
        self.kubelet = SimulatedKubelet(client, self._clock, options)
        every = (options or KubeletOptions()).heartbeat_seconds
        self._heartbeats = Heartbeats(client, self._clock, self.kubelet.nodes.values, every)

    async def run(self) -> None:
        if self._fleet.originals:
            await create_copies(self._client, self._fleet.originals, self._clock, self._notify)
        await create_fleet(self._client, self._fleet, self._clock, self._notify)
        await self._devices.start()
        await run_all((("kubelet", self.kubelet.run()), ("heartbeats", self._beat()), ("devices", self._devices.run())))

    async def _beat(self) -> None:
        await self.kubelet.synced.wait()
        self.ready.set()
        await self._heartbeats.run()
