"""Publish the devices of simulated drivers, for existing nodes and for every simulated node that is added later.

A Node owns its ResourceSlices, as with real drivers, so the garbage collector deletes them with the node. Slices of
multi-node domains are updated, with a new generation of their pool, when nodes are added or removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence

import msgspec

from phalanx.base.client import Client
from phalanx.base.errors import AlreadyExists, ApiProblem, NotFound
from phalanx.base.informer import Informer, ObjectChange
from phalanx.base.resources import DEVICE_CLASSES as CLASSES
from phalanx.base.resources import NODES
from phalanx.base.resources import RESOURCE_SLICES as SLICES
from phalanx.base.retry import delay, verdict
from phalanx.base.tasks import run_all
from phalanx.base.work import WorkQueue
from phalanx.local.nodes.devices import Json, SimulatedDriver
from phalanx.local.nodes.fleet import AT_ONCE, SIMULATED

STARTING = 8  # attempts while the server does not serve the device kinds yet
DOMAINS = ""  # queue key of the slices of all multi-node domains
log = logging.getLogger(__name__)


class _Meta(msgspec.Struct, frozen=True):
    name: str = ""
    uid: str = ""


class _Node(msgspec.Struct, frozen=True):
    metadata: _Meta = _Meta()


class DevicePublisher:
    def __init__(self, client: Client, drivers: Sequence[SimulatedDriver]) -> None:
        self._client = client
        self._drivers = drivers
        self._uids: dict[str, str] = {}  # nodes by name
        self._index: dict[str, int] = {}  # node -> its number, which selects its multi-node domain
        self._work: WorkQueue[str] = WorkQueue("devices")

    async def start(self) -> None:
        """Publish the devices of the nodes that exist. Retries while the server does not serve the kinds yet."""
        rng, attempt = random.Random(0), 0  # a single process publishes devices: no random jitter needed
        while self._drivers:
            try:
                await self._publish_all()
                return
            except ApiProblem as problem:
                absent = isinstance(problem, NotFound) and attempt < STARTING  # its API may not be served yet
                if verdict(problem) == "final" and not absent:
                    raise
                log.warning("publishing the simulated devices: %s; retrying", problem)
                await asyncio.sleep(delay(attempt, problem, rng))
                attempt += 1

    async def run(self) -> None:
        """Watch the simulated nodes until cancelled."""
        if not self._drivers:
            await asyncio.Event().wait()
        nodes = Informer(self._client, NODES, _Node, self._on_node, labels=f"{SIMULATED}=true")
        await run_all((("nodes", nodes.run()), ("devices", self._work.run(self._step, AT_ONCE))))

    def _on_node(self, change: ObjectChange[_Node]) -> None:
        node, known = change.object, self._uids.get(change.name)
        if node is None:
            if known is not None:
                del self._uids[change.name], self._index[change.name]
                self._work.add(DOMAINS)
        elif known != node.metadata.uid:
            self._add(change.name, node.metadata.uid)
            self._work.add(change.name)
            self._work.add(DOMAINS)

    def _add(self, name: str, uid: str) -> None:
        self._uids[name] = uid
        taken = set(self._index.values())
        self._index.setdefault(name, next(number for number in range(len(taken) + 1) if number not in taken))

    async def _publish_all(self) -> None:
        for driver in self._drivers:
            for body in (driver.device_class(), *([driver.domain_class()] if driver.domain else [])):
                with contextlib.suppress(AlreadyExists):
                    await self._client.create(CLASSES, body)
        found = msgspec.json.decode(await self._client.list(NODES, labels=f"{SIMULATED}=true"))["items"] or ()
        metas = sorted((node["metadata"]["name"], node["metadata"]["uid"]) for node in found)
        for index, (name, uid) in enumerate(metas):
            self._uids[name], self._index[name] = uid, index
        await self._publish_domains()
        names = iter([name for name, _ in metas])

        async def publish_some() -> None:
            for name in names:
                await self._publish(name)

        await asyncio.gather(*(publish_some() for _ in range(AT_ONCE)))

    async def _step(self, name: str) -> None:
        if name == DOMAINS:
            await self._publish_domains()
        elif name in self._uids:
            await self._publish(name)

    async def _publish(self, node: str) -> None:
        owner = {"apiVersion": "v1", "kind": "Node", "name": node, "uid": self._uids[node], "controller": True}
        for driver in self._drivers:
            for body in driver.slices(node, self._index[node]):
                body["metadata"]["ownerReferences"] = [owner]
                await self._create(body, owner["uid"])

    async def _create(self, body: Json, uid: object) -> None:
        """Create a slice. Replace a slice of an earlier node of the same name; leave any other as it is."""
        with contextlib.suppress(AlreadyExists):
            await self._client.create(SLICES, body)
            return
        name = body["metadata"]["name"]
        with contextlib.suppress(NotFound):
            known: Json = msgspec.json.decode(await self._client.get(SLICES, name))
            owners = known["metadata"].get("ownerReferences") or ()
            if not owners or any(each["uid"] == uid for each in owners):
                return
            await self._client.delete(SLICES, name, uid=known["metadata"]["uid"])
        with contextlib.suppress(AlreadyExists):  # after a lost answer, the repeated request finds the slice
            await self._client.create(SLICES, body)

    async def _publish_domains(self) -> None:
        for driver in self._drivers:
            members: dict[int, list[str]] = {}
            for name, index in sorted(self._index.items()):
                members.setdefault(index // driver.domain if driver.domain else -1, []).append(name)
            for number, nodes in members.items() if driver.domain else ():
                await self._publish_domain(driver.domain_slice(number, nodes))

    async def _publish_domain(self, body: Json) -> None:
        with contextlib.suppress(AlreadyExists):
            await self._client.create(SLICES, body)
            return
        known: Json = msgspec.json.decode(await self._client.get(SLICES, body["metadata"]["name"]))
        if known["spec"].get("nodeSelector") == body["spec"]["nodeSelector"]:
            return
        generation = int(known["spec"]["pool"]["generation"]) + 1
        pool = {**body["spec"]["pool"], "generation": generation}
        changed = {**known, "spec": {**body["spec"], "pool": pool}}
        await self._client.update(SLICES, body["metadata"]["name"], changed)
