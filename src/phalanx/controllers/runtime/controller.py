"""The base of every controller: a queue of keys and workers that reconcile them.

Changes of caches add keys. Reconcilers are idempotent and may be killed at any point.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod

from phalanx.base.errors import BadRequest, Forbidden, Invalid
from phalanx.base.work import WorkQueue
from phalanx.controllers.runtime.cache import Cache, Caches, Handler, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import controller_of

__all__ = ["Cache", "Caches", "Controller", "CustomController", "Json", "Key"]
log = logging.getLogger(__name__)
REFUSED = "RequestRefused"


class Controller(ABC):
    """One kind of reconciliation. Subclasses watch caches and implement `reconcile`."""

    name = "controller"
    workers = 4

    def __init__(self) -> None:
        self.queue: WorkQueue[Key] = WorkQueue(self.name)
        self._refusals: tuple[Cache, Events] | None = None

    def requeue(self, key: Key, new: Json | None = None, old: Json | None = None) -> None:
        """Reconcile the object of this key. May be registered with `Cache.on_change`."""
        self.queue.add(key)

    def requeue_owner(self, kind: str) -> Handler:
        """Return a handler that reconciles the controller, of this kind, of an object that changed."""

        def changed(key: Key, new: Json | None, old: Json | None) -> None:
            for obj in (new, old):
                reference = controller_of(obj) if obj is not None else None
                if reference is not None and reference["kind"] == kind:
                    self.queue.add(Key(key.namespace, reference["name"]))

        return changed

    @abstractmethod
    async def reconcile(self, key: Key) -> None:
        """Bring the cluster one step nearer to the desired state of this key's object."""

    def report_refusals(self, objects: Cache, events: Events) -> None:
        """Record an Event on the object of a key if the API server refuses what `reconcile` asks for."""
        self._refusals = (objects, events)

    async def _attempt(self, key: Key) -> None:
        try:
            await self.reconcile(key)
        except (BadRequest, Forbidden, Invalid) as problem:
            if self._refusals is not None and not problem.reported:
                objects, events = self._refusals
                if (obj := objects.get(*key)) is not None:
                    events.warning(obj, self.name, REFUSED, f"The API server refused a request for it: {problem}")
            raise

    async def run(self) -> None:
        await self.queue.run(self._attempt, self.workers)


MALFORMED = (AttributeError, IndexError, KeyError, TypeError, ValueError)


class CustomController(Controller):
    """A reconciler of custom resources, whose definition may let fields of any type through.

    An object that cannot be read is reported in an event and left alone until it changes.
    """

    def __init__(self, events: Events) -> None:
        super().__init__()
        self._events = events

    async def reconcile(self, key: Key) -> None:
        try:
            await self.reconcile_object(key)
        except MALFORMED as problem:
            obj = self.object_of(key)
            log.warning("%s: %s has a field of the wrong type or lacks one: %r", self.name, key, problem)
            log.debug("it was read here:", exc_info=problem)
            if obj is not None:
                text = f"it, or what it refers to, has a field of the wrong type or lacks one: {problem!r}"
                self._events.warning(obj, self.name, "Malformed", text)

    @abstractmethod
    async def reconcile_object(self, key: Key) -> None:
        """Do what `reconcile` of other controllers does."""

    @abstractmethod
    def object_of(self, key: Key) -> Json | None:
        """Return the object of a key."""
