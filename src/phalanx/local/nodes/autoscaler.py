"""A simulated autoscaler: node groups follow what the scheduler says is missing, up and down.

Up: nodes that waiting groups lack are created after the group's delay, all nodes of a gang together. Down: a node that
nothing uses for a while is cordoned first; it is deleted only once the scheduler has seen the cordon and still has no
pod there, so that no pod can be on its way to it.
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

LOOK_SECONDS = 1.0  # between two looks at the demand
SCALE_DOWN = "simulation.phalanx.dev/scale-down"  # annotation: this autoscaler cordoned the node

log = logging.getLogger(__name__)


class Needs(msgspec.Struct, frozen=True):
    """What the scheduler says: names of nodes to create, of nodes that are unused, and of those also cordoned."""

    missing: Collection[str] = ()
    idle: Collection[str] = ()
    cordoned: Collection[str] = ()


Ask = Callable[[], Awaitable[Needs | None]]  # None: the scheduler cannot say now


class Autoscaler:
    """`run` until cancelled; `ready` once the minimum of every group exists."""

    def __init__(self, client: Client, groups: Sequence[NodeGroup], ask: Ask, clock: Clock) -> None:
        self.ready = asyncio.Event()
        self._client = client
        self._groups = groups
        self._ask = ask
        self._clock = clock
        self._places = {name: (group, number) for group in groups for number, name in enumerate(group.names)}
        self._due: dict[str, float] = {}  # node to be created -> when
        self._idle_since: dict[str, float] = {}

    async def run(self) -> None:
        while True:
            try:
                await self._look()
            except ApiProblem as problem:
                log.warning("autoscaling: %s; trying again", problem)
            await asyncio.sleep(self._pause())

    def _pause(self) -> float:
        """Return the seconds until the next look; fewer if nodes are due before that."""
        now = self._clock.now()
        return min([LOOK_SECONDS, *(max(0.01, due - now) for due in self._due.values())])

    async def _look(self) -> None:
        existing = await self._existing()
        if not self.ready.is_set():
            first = [group.node_name(number) for group in self._groups for number in range(group.low)]
            await self._create([name for name in first if name not in existing])
            self.ready.set()
            return
        needs = await self._ask()
        if needs is None:
            return
        if needs.missing and (kept := [name for name, cordoned in existing.items() if cordoned]):
            for name in kept:  # the demand may be met without new nodes
                await self._cordon(name, None)
            return
        await self._scale_up([name for name in needs.missing if name not in existing and name in self._places])
        if not needs.missing:
            await self._scale_down(existing, needs)

    async def _existing(self) -> dict[str, bool]:
        """Return the nodes of our groups that exist, and whether we cordoned them."""
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
            there = sum(self._places[name][0] is group for name in existing)
            mine = [name for name in reversed(idle) if self._places[name][0] is group]
            surplus = mine[: max(0, there - group.low)]
            for name in surplus:
                if existing[name] and name in needs.cordoned:
                    await self._delete(name)
                elif not existing[name] and now - self._idle_since[name] >= group.idle:
                    await self._cordon(name, "true")
        for name, ours in existing.items():
            if ours and name not in needs.idle:
                await self._cordon(name, None)  # a pod got there before the scheduler saw the cordon

    async def _cordon(self, name: str, value: str | None) -> None:
        """Cordon a node that is to be removed; with None make it usable again."""
        metadata = {"annotations": {SCALE_DOWN: value}}
        patch: dict[str, Any] = {"metadata": metadata, "spec": {"unschedulable": True if value else None}}
        with contextlib.suppress(NotFound):
            await self._client.patch(NODES, name, patch)

    async def _delete(self, name: str) -> None:
        with contextlib.suppress(NotFound):
            await self._client.delete(NODES, name)
        log.info("autoscaling: removed %s", name)
