"""5,000 nodes and 50,000 pods in an engine of their own, behind the real site: what a large cluster costs a browser.

Some thirty gangs of each size, most of one rack, a few torn across a block; two groups wait, three nodes are away.
"""

from __future__ import annotations

import asyncio
import random
import threading

import msgspec
from aiohttp import web

from phalanx.base.clock import SystemClock
from phalanx.engine import events
from phalanx.engine.engine import Engine
from phalanx.model import objects
from phalanx.model.gates import Gates
from phalanx.serve.queries.diagnostics import Diagnostics
from phalanx.serve.queries.engine_view import EngineReader
from phalanx.testing.builders import node, pod, pod_group
from phalanx.web.feed import Feed
from phalanx.web.history import UsageHistory
from phalanx.web.login import Login
from phalanx.web.questions import Questions
from phalanx.web.site import Site

NODES, PODS, RACKS, BLOCKS = 5_000, 50_000, 64, 8
RACK, BLOCK, ZONE = "topology.phalanx.dev/rack", "topology.phalanx.dev/block", "topology.kubernetes.io/zone"
ROOM = 15  # pods a node takes; ten of them would fill it evenly


def large_engine(nodes: int = NODES, pods: int = PODS) -> Engine:
    engine = Engine()
    rng = random.Random(7)
    racks: list[list[str]] = [[] for _ in range(RACKS)]
    for number in range(nodes):
        rack = number * RACKS // nodes
        labels = {RACK: f"rack-{rack}", BLOCK: f"block-{rack * BLOCKS // RACKS}", ZONE: f"zone-{rack * 2 // RACKS}"}
        made = node(f"node-{number:05d}").labels(labels).cpu(64).mem("512Gi").gpu(8).pods(110)
        if number % 1700 == 1699:
            made.spec["unschedulable"] = True
        engine.apply(events.NodeChanged(made.build()))
        racks[rack].append(f"node-{number:05d}")
    free = {name: 8 for rack in racks for name in rack}
    made_pods = count = 0
    while made_pods < pods:
        size = rng.choice((8, 16, 32, 64, 128, 256))
        name = f"train-{count:04d}"
        count += 1
        rack = rng.randrange(RACKS)
        gpus = 1 if rng.random() < 0.75 else 0
        slots_per_client: list[str] = []
        for at in range(rack, rack + RACKS):
            for where in racks[at % RACKS]:
                take = min(size - len(slots_per_client), free[where] if gpus else 6, 8 if gpus else 4)
                slots_per_client += [where] * take
                free[where] -= take * gpus
                if len(slots_per_client) == size:
                    break
            if len(slots_per_client) == size:
                break
        if len(slots_per_client) < size:
            gpus, slots_per_client = 0, [rng.choice(racks[rack]) for _ in range(size)]
        engine.apply(events.PodGroupChanged(pod_group(name).ns("default").gang(size).topology(BLOCK).build()))
        template = pod("x").ns("default").cpu("500m")
        if gpus:
            template.gpu(1)
        body = template.dict()
        body["spec"]["schedulingGroup"] = {"podGroupName": name}
        body["spec"]["priority"] = 100 * (count % 4)
        for rank, where in enumerate(slots_per_client):
            body["metadata"] = {"namespace": "default", "name": f"{name}-{rank}", "uid": f"{count}-{rank}"}
            body["spec"]["nodeName"] = where
            engine.apply(events.PodChanged(msgspec.convert(body, objects.Pod)))
        made_pods += size
    engine.step(1.0, 1000)
    return engine


class Standing:
    """The site over an engine that makes no steps, on a free port, in a thread."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(60)

    async def _start(self) -> None:
        clock = SystemClock()
        reader = EngineReader(self.engine, clock.now)
        history = UsageHistory(reader, clock.now)
        self.feed = Feed(reader, history, clock)
        self.login = Login(b"key", clock.now)
        diagnostics = Diagnostics(self.engine, None, Gates(), lambda: True)  # type: ignore[arg-type]  # no events asked
        site = Site(self.feed, Questions(reader, diagnostics, None, history), self.login)  # type: ignore[arg-type]
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", site.handle)
        self._runner = web.AppRunner(app, shutdown_timeout=1.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}/"
        self._feeding = asyncio.ensure_future(self.feed.run())

    def link(self) -> str:
        return f"{self.url}#login={self.login.link()}"

    def publish(self, change: dict[str, object]) -> None:
        asyncio.run_coroutine_threadsafe(self.feed._publish(change), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _stop(self) -> None:
        self._feeding.cancel()
        await self.feed.close()
        await self._runner.cleanup()
