"""Publish the demand for nodes as metrics.

The demand, by node shape and topology domain, is computed in a fork of the engine. A scrape publishes the last result
and requests a new one if that is old and units are pending. Without scrapes nothing is computed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter as Tally
from collections.abc import Iterable

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric

from phalanx.base.errors import ApiProblem
from phalanx.engine.explain.values import NodeDemand
from phalanx.serve.metrics.at_scrape import AtScrape, gauge
from phalanx.serve.queries.diagnostics import Diagnostics
from phalanx.serve.scheduler import SchedulerService

log = logging.getLogger(__name__)

FRESH_SECONDS = 10.0  # maximum age of a result without a new query


class DemandMetrics:
    def __init__(self, registry: CollectorRegistry, service: SchedulerService, diagnostics: Diagnostics) -> None:
        self._service = service
        self._diagnostics = diagnostics
        self._asking: asyncio.Task[None] | None = None
        self._asked = 0.0
        self._found = NodeDemand([], [])
        AtScrape(registry, self._counts)

    def _counts(self) -> Iterable[Metric]:
        self._ask_again()
        lacking: Tally[tuple[str, str]] = Tally()
        for each in self._found.shapes:
            lacking[each.shape, f"{each.topology_key}={each.domain}" if each.domain else ""] += each.count
        text = "Nodes that waiting groups lack, by node shape and domain."
        yield gauge("phalanx_demand_nodes", text, ["shape", "domain"], lacking)
        helped = sum(bool(group.nodes) for group in self._found.groups)
        text = "Waiting groups and pods that lack nodes: nodes of a known shape would be enough, or none would."
        results = {"addable": helped, "never": len(self._found.groups) - helped}
        yield gauge("phalanx_demand_groups", text, ["result"], results)

    def _ask_again(self) -> None:
        """Compute the demand for the next scrape if the last result is old."""
        if not self._service.engine.queue.units:
            self._found = NodeDemand([], [])
        elif self._asking is not None and not self._asking.done():
            return
        elif self._service.now() - self._asked >= FRESH_SECONDS and self._service.synced:
            self._asked = self._service.now()
            self._asking = asyncio.get_running_loop().create_task(self._refresh(), name="demand metrics")

    async def _refresh(self) -> None:
        try:
            body = await self._diagnostics.demand()
        except ApiProblem as problem:
            log.warning("the demand for nodes could not be computed: %s", problem)
            return
        self._found = msgspec.json.decode(body, type=NodeDemand)
