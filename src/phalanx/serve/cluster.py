"""`phalanx up`: the local cluster in one process. Defines which parts run; each part knows only its client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from phalanx.base.clock import Clock, SystemClock
from phalanx.local.api.limits import Limits
from phalanx.serve.apiserver import ApiServer
from phalanx.serve.component import Component, ComponentGroup, Supervised
from phalanx.serve.metrics.at_scrape import counter_text
from phalanx.serve.scheduler_parts import SchedulingSettings
from phalanx.serve.settings import ServerSettings

Part = Callable[[ApiServer], Component]  # called when the API server serves


class ClusterSettings(SchedulingSettings, frozen=True, kw_only=True):
    server: ServerSettings = msgspec.field(default_factory=ServerSettings)
    nodes: int | None = 0  # None: `usual_nodes` in a new cluster, else the existing number
    topology: str = ""
    devices: str = ""  # devices of the nodes, by simulated drivers (--devices)
    autoscale: tuple[str, ...] = ()  # node groups of a simulated autoscaler (--autoscale)
    usual_nodes: int = 10
    usual_topology: str = ""
    run_nodes: bool = True  # False: no simulated kubelets at all (--no-nodes)
    run_controllers: bool = True  # False: no workload, PDB or node controllers (--no-controllers)
    run_scheduler: bool = True


class ServedCluster:
    """The API server, then the other parts in order. `parts` come from the composition root.

    A failed part is created again, and /readyz fails meanwhile. Only a failure of the API server ends the cluster.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        parts: Sequence[Part] = (),
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.settings = settings
        self.server = ApiServer(settings.server, clock=clock or SystemClock(), limits=limits)
        self._group = ComponentGroup()
        self._started = False
        self._supervised = [Supervised(partial(part, self.server), self._report_ready) for part in parts]

    async def start(self) -> None:
        """Start all parts; return when they work. Raises ConfigProblem before anything runs."""
        await self.server.start()
        self.server.ready = False  # /readyz covers all parts
        try:
            text = "Times a part of this process died and was started again."
            self.server.measure("parts", lambda: counter_text("phalanx_part_restarts", text, "part", self.restarts))
            for part in self._supervised:
                self._group.add(part)
            await self._group.start()
        except BaseException:
            await self.stop()
            raise
        self._started = True
        self._report_ready()

    @property
    def restarts(self) -> dict[str, int]:
        """Return how often each part failed and was created again."""
        return {part.name: part.restarts for part in self._supervised}

    def _report_ready(self) -> None:
        self.server.ready = self._started and not any(part.failure for part in self._supervised)

    async def stop(self) -> None:
        self._started = False
        self.server.ready = False
        await self._group.stop()
        await self.server.stop()

    async def until_failure(self) -> None:
        await self._group.until_failure(self.server.failed)
