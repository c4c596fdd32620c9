"""What every controller stands on: a queue of keys and workers that reconcile them.

Reconcilers are fed by the changes of caches. They are idempotent and may be killed at any point.
"""

from __future__ import annotations

import asyncio
import logging

from phalanx.base.errors import ApiProblem, Conflict
from phalanx.controllers.cache import Cache, Caches, Json, Key
from phalanx.controllers.queue import WorkQueue

__all__ = ["Cache", "Caches", "Controller", "Json", "Key"]

log = logging.getLogger(__name__)


class Controller:
    """One kind of reconciliation. Subclasses watch caches and implement `reconcile`."""

    name = "controller"
    workers = 4

    def __init__(self) -> None:
        self.queue: WorkQueue[Key] = WorkQueue()

    async def reconcile(self, key: Key) -> None:
        raise NotImplementedError  # abstract

    def _failed(self, key: Key, error: Exception) -> None:
        if isinstance(error, Conflict):
            log.debug("%s: %s changed meanwhile, looking again", self.name, key)
        elif isinstance(error, ApiProblem):
            log.info("%s: %s: %s", self.name, key, error)
        else:
            log.error("%s: %s", self.name, key, exc_info=error)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self.workers):
                    group.create_task(self.queue.run(self.reconcile, self._failed))
        finally:
            self.queue.close()
