"""Heartbeats of simulated nodes: one Lease each in kube-node-lease, renewed at different times to limit the load.

A node renews its lease every ten seconds (see `KubeletOptions`); in clusters above 2,000 nodes less often, so that all
nodes together write at most WRITES_PER_SECOND. The lease duration grows with this interval and with the delay of
renewals, because late renewals mean an overloaded machine and not a failed node.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

import msgspec

from phalanx.base.client import Client
from phalanx.base.clock import Clock, rfc3339_micro
from phalanx.base.errors import AlreadyExists, ApiProblem, NotFound
from phalanx.base.resources import LEASES
from phalanx.base.well_known import NODE_LEASE_NAMESPACE
from phalanx.local.nodes.kubelet import MANAGER
from phalanx.local.nodes.pod_runs import SimulatedNode

SHORTEST_INTERVAL = 10.0
WRITES_PER_SECOND = 200
AT_ONCE = 256  # concurrent renewals: on a slow disk a write can take a second
TICK = 0.1  # fraction of the interval between two checks for due renewals
_encode = msgspec.json.Encoder().encode
log = logging.getLogger(__name__)


def interval(nodes: int, shortest: float = SHORTEST_INTERVAL) -> float:
    return max(shortest, nodes / WRITES_PER_SECOND)


class Heartbeats:
    def __init__(
        self,
        client: Client,
        clock: Clock,
        nodes: Callable[[], Iterable[SimulatedNode]],
        shortest: float = SHORTEST_INTERVAL,
    ) -> None:
        self._client = client
        self._shortest = shortest
        self._clock = clock
        self._nodes = nodes
        self._due: dict[str, float] = {}  # node -> monotonic time of its next renewal

    async def run(self) -> None:
        while True:
            await self.beat()
            await asyncio.sleep(TICK * self._shortest)

    async def beat(self) -> None:
        """Renew the leases that are due."""
        alive = [node for node in self._nodes() if not node.failed]
        every = interval(len(alive), self._shortest)
        now = self._clock.monotonic()
        late = 0.0  # largest delay in seconds, without the time between two checks
        due: list[SimulatedNode] = []
        for position, node in enumerate(alive):
            when = self._due.get(node.name)
            if when is None:
                # Spread new nodes over the first interval.
                when = self._due[node.name] = now + every * position / len(alive)
            if when <= now:
                self._due[node.name] = max(when + every, now)
                late = max(late, now - when - TICK * self._shortest)
                due.append(node)
        if len(self._due) > 2 * len(alive):
            names = {node.name for node in alive}
            self._due = {name: when for name, when in self._due.items() if name in names}
        for start in range(0, len(due), AT_ONCE):
            await asyncio.gather(*(self._renew(node, every + late) for node in due[start : start + AT_ONCE]))

    async def _renew(self, node: SimulatedNode, every: float) -> None:
        spec = {
            "holderIdentity": node.name,
            "leaseDurationSeconds": max(40, round(4 * every)),
            "renewTime": rfc3339_micro(self._clock.now()),
        }
        try:
            try:
                await self._client.patch(
                    LEASES, node.name, _encode({"spec": spec}), NODE_LEASE_NAMESPACE, field_manager=MANAGER
                )
            except NotFound:
                await self._client.create(LEASES, self._lease(node, spec), NODE_LEASE_NAMESPACE, field_manager=MANAGER)
        except (NotFound, AlreadyExists):
            return
        except ApiProblem as problem:
            log.warning("heartbeat of %s: %s", node.name, problem.message)

    def _lease(self, node: SimulatedNode, spec: dict[str, object]) -> dict[str, object]:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.view.metadata.uid}
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": node.name, "namespace": NODE_LEASE_NAMESPACE, "ownerReferences": [owner]},
            "spec": spec,
        }
