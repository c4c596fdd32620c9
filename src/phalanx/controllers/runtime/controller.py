"""What every controller stands on: a queue of keys and workers that reconcile them.

Reconcilers are fed by the changes of caches. They are idempotent and may be killed at any point.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from phalanx.base.work import WorkQueue
from phalanx.controllers.runtime.cache import Cache, Caches, Json, Key

__all__ = ["Cache", "Caches", "Controller", "Json", "Key"]


class Controller(ABC):
    """One kind of reconciliation. Subclasses watch caches and implement `reconcile`."""

    name = "controller"
    workers = 4

    def __init__(self) -> None:
        self.queue: WorkQueue[Key] = WorkQueue(self.name)

    @abstractmethod
    async def reconcile(self, key: Key) -> None:
        """Bring the cluster one step nearer to what the object of this key asks for."""

    async def run(self) -> None:
        await self.queue.run(self.reconcile, self.workers)
