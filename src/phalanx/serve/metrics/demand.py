"""Publish the demand for nodes as metrics.

The demand, by node shape and topology domain, is computed in a fork of the engine. A scrape publishes the last result
and requests a new one if that is old and units are pending. Without scrapes nothing is computed.
"""

from __future__ import annotations

import asyncio
import logging

import msgspec
from prometheus_client import Gauge

from phalanx.base.errors import ApiProblem
from phalanx.engine.explain.values import NodeDemand
from phalanx.serve.metrics.scheduler import SchedulerMetrics
from phalanx.serve.queries.diagnostics import Diagnostics
from phalanx.serve.scheduler import SchedulerService

log = logging.getLogger(__name__)

FRESH_SECONDS = 10.0  # maximum age of a result without a new query


class DemandMetrics:
    def __init__(self, metrics: SchedulerMetrics, service: SchedulerService, diagnostics: Diagnostics) -> None:
        self._service = service
        self._diagnostics = diagnostics
        self._asking: asyncio.Task[None] | None = None
        self._asked = 0.0
        self._nodes = Gauge(
            "phalanx_demand_nodes",
            "Nodes that waiting groups lack, by node shape and domain.",
            ["shape", "domain"],
            registry=metrics.registry,
        )
        self._groups = Gauge(
            "phalanx_demand_groups",
            "Waiting groups and pods that lack nodes: nodes of a known shape would be enough, or none would.",
            ["result"],
            registry=metrics.registry,
        )
        metrics.on_scrape.append(self.scraped)

    def scraped(self) -> None:
        """Compute the demand again for the next scrape if the last result is old."""
        if not self._service.engine.queue.units:
            self._publish(NodeDemand([], []))
            return
        if self._asking is not None and not self._asking.done():
            return
        if self._service.now() - self._asked >= FRESH_SECONDS and self._service.synced:
            self._asked = self._service.now()
            self._asking = asyncio.get_running_loop().create_task(self._ask(), name="demand metrics")

    async def _ask(self) -> None:
        try:
            body = await self._diagnostics.demand()
        except ApiProblem as problem:
            log.warning("the demand for nodes could not be computed: %s", problem)
            return
        self._publish(msgspec.json.decode(body, type=NodeDemand))

    def _publish(self, found: NodeDemand) -> None:
        self._nodes.clear()
        for each in found.shapes:
            domain = f"{each.topology_key}={each.domain}" if each.domain else ""
            self._nodes.labels(each.shape, domain).set(each.count)
        self._groups.labels("addable").set(sum(bool(group.nodes) for group in found.groups))
        self._groups.labels("never").set(sum(not group.nodes for group in found.groups))
