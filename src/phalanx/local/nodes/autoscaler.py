"""A simulated autoscaler: create the nodes that the scheduler misses and remove nodes that it does not use.

Up: missing nodes are created after the delay of their node group, all nodes of a gang together. Down: a node that was
unused for a while is cordoned first; it is deleted only after the scheduler has seen the cordon and still has no pod
there, so that no pod can be bound to it meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any

import msgspec

from phalanx.base.client import Client
from phalanx.base.clock import Clock
from phalanx.base.errors import AlreadyExists, ApiProblem, NotFound
from phalanx.base.resources import NODES
from phalanx.local.nodes.fleet import AT_ONCE
from phalanx.local.nodes.node_groups import NODE_GROUP, NodeGroup

LOOK_SECONDS = 1.0  # between two checks of the demand
SCALE_DOWN = "simulation.phalanx.dev/scale-down"  # annotation: this autoscaler cordoned the node

log = logging.getLogger(__name__)


class Needs(msgspec.Struct, frozen=True):
    """Names of nodes, as the scheduler reports them: to create, unused, and unused and cordoned."""

    missing: Collection[str] = ()
    idle: Collection[str] = ()
    cordoned: Collection[str] = ()


Ask = Callable[[], Awaitable[Needs | None]]  # None: the scheduler does not know now


class Autoscaler:
    """`run` until cancelled; `ready` once the minimum of every group exists."""

    def __init__(self, client: Client, groups: Sequence[NodeGroup], ask: Ask, clock: Clock) -> None:
        self.ready = asyncio.Event()
        self._client = client
        self._groups = groups
        self._ask = ask
        self._clock = clock
        self._places = {name: (group, number) for group in groups for number, name in enumerate(group.names)}
        self._due: dict[str, float] = {}  # node to create -> time
        self._idle_since: dict[str, float] = {}

    async def run(self) -> None:
        while True:
            try:
                await self._reconcile()
            except ApiProblem as problem:
                log.warning("autoscaling: %s; retrying", problem)
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Return the seconds until the next check; fewer if a node is due before."""
        now = self._clock.now()
        return min([LOOK_SECONDS, *(max(0.01, due - now) for due in self._due.values())])

    async def _reconcile(self) -> None:
        existing = await self._existing()
        if not self.ready.is_set():
            first = [group.node_name(number) for group in self._groups for number in range(group.low)]
            await self._create([name for name in first if name not in existing])
            self.ready.set()
            return
        needs = await self._ask()
        if needs is None:
            return
        if needs.missing and (cordoned_nodes := [name for name, cordoned in existing.items() if cordoned]):
            for name in cordoned_nodes:  # uncordon first: the demand may be met without new nodes
                await self._cordon(name, None)
            return
        await self._scale_up([name for name in needs.missing if name not in existing and name in self._places])
        if not needs.missing:
            await self._scale_down(existing, needs)

    async def _existing(self) -> dict[str, bool]:
        """Return the existing nodes of the node groups, and whether this autoscaler cordoned each."""
        found = msgspec.json.decode(await self._client.list(NODES, labels=NODE_GROUP))["items"] or ()
        return {
            node["metadata"]["name"]: SCALE_DOWN in (node["metadata"].get("annotations") or {})
            for node in found
            if node["metadata"]["name"] in self._places
        }

    # ---- up

    async def _scale_up(self, missing: list[str]) -> None:
        now = self._clock.now()
        self._due = {name: self._due.get(name, now + self._places[name][0].delay) for name in missing}
        ready = [name for name, due in self._due.items() if due <= now]
        await self._create(ready)
        for name in ready:
            del self._due[name]

    async def _create(self, names: list[str]) -> None:
        now = self._clock.now()
        left = iter(names)

        async def create_some() -> None:
            for name in left:
                group, number = self._places[name]
                with contextlib.suppress(AlreadyExists):
                    await self._client.create(NODES, group.body(number, now))

        await asyncio.gather(*(create_some() for _ in range(min(AT_ONCE, len(names)))))
        if names:
            log.info("autoscaling: created %s", ", ".join(names))

    # ---- down

    async def _scale_down(self, existing: dict[str, bool], needs: Needs) -> None:
        now = self._clock.now()
        idle = [name for name in existing if name in needs.idle]
        self._idle_since = {name: self._idle_since.get(name, now) for name in idle}
        for group in self._groups:
            existing_count = sum(self._places[name][0] is group for name in existing)
            idle_of_group = [name for name in reversed(idle) if self._places[name][0] is group]
            surplus = idle_of_group[: max(0, existing_count - group.low)]
            for name in surplus:
                if existing[name] and name in needs.cordoned:
                    await self._delete(name)
                elif not existing[name] and now - self._idle_since[name] >= group.idle:
                    await self._cordon(name, "true")
        for name, cordoned in existing.items():
            if cordoned and name not in needs.idle:
                await self._cordon(name, None)  # a pod got there before the scheduler saw the cordon

    async def _cordon(self, name: str, value: str | None) -> None:
        """Cordon a node before it is removed; with None, uncordon it."""
        metadata = {"annotations": {SCALE_DOWN: value}}
        patch: dict[str, Any] = {"metadata": metadata, "spec": {"unschedulable": True if value else None}}
        with contextlib.suppress(NotFound):
            await self._client.patch(NODES, name, patch)

    async def _delete(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            await self._client.delete(NODES, name)
        log.info("autoscaling: removed %s", name)
