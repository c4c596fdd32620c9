"""Find the objects of an owner: those it controls, plus orphans its selector adopts, minus those that no longer match.

Adoption makes `kubectl delete --cascade=orphan` and a new owner with the same selector work.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.base.client import Resource
from phalanx.base.errors import Invalid, NotFound
from phalanx.controllers.runtime.cache import by_labels
from phalanx.controllers.runtime.controller import Cache, Json
from phalanx.controllers.runtime.ownership import controller_of, controller_reference, deleting, index_by_controller
from phalanx.model.selectors import LabelMatcher, from_selector


class Claims:
    def __init__(self, cache: Cache, owner: Resource, finalizer: str = "") -> None:
        """Configure claiming. finalizer: carried by every owned object; added and removed with the owner reference."""
        self._cache, self._owner, self._finalizer = cache, owner, finalizer
        cache.index("controller", index_by_controller, of_marks=True)
        cache.index("orphans", _index_orphans, of_marks=True)

    async def of(self, owner: Json, adoptable: Callable[[Json], bool] = lambda obj: True) -> list[Json]:
        """Return every object of `owner`, in a stable order."""
        meta = owner["metadata"]
        matcher = selector_of(owner)
        mine = []
        for obj in self._cache.by_index("controller", meta["uid"]):
            if matcher.matches(obj["metadata"].get("labels")):
                mine.append(obj)
            else:
                await self._release(obj, meta["uid"])
        if deleting(owner):
            return mine
        for obj in self._cache.matching("orphans", meta["namespace"], matcher):
            if not deleting(obj) and adoptable(obj):
                adopted = await self._adopt(obj, owner)
                if adopted is not None:
                    mine.append(adopted)
        return mine

    def is_orphan(self, obj: Json) -> bool:
        return controller_of(obj) is None and bool(obj["metadata"].get("labels"))

    async def _adopt(self, obj: Json, owner: Json) -> Json | None:
        meta = obj["metadata"]
        references = [*(meta.get("ownerReferences") or ()), controller_reference(owner, self._owner)]
        change: Json = {"ownerReferences": references, "resourceVersion": meta["resourceVersion"]}
        held = meta.get("finalizers") or []
        if self._finalizer and self._finalizer not in held:
            change["finalizers"] = [*held, self._finalizer]
        return await self._patch(obj, change)

    async def _release(self, obj: Json, uid: str) -> None:
        references = [ref for ref in obj["metadata"].get("ownerReferences") or () if ref.get("uid") != uid]
        change: Json = {"ownerReferences": references or None}
        held = obj["metadata"].get("finalizers") or []
        if self._finalizer in held:
            change["finalizers"] = [name for name in held if name != self._finalizer] or None
        await self._patch(obj, change)

    async def _patch(self, obj: Json, change: Json) -> Json | None:
        try:
            return await self._cache.patch(obj, {"metadata": {"uid": obj["metadata"]["uid"], **change}})
        except (NotFound, Invalid):  # deleted, or being deleted with finalizers
            return None


def selector_of(owner: Json) -> LabelMatcher:
    """Return the selector: plain labels for ReplicationControllers, a LabelSelector for all others."""
    selector = owner["spec"]["selector"]
    return from_selector({"matchLabels": selector} if owner["apiVersion"] == "v1" else selector)


def _index_orphans(obj: Json) -> list[str]:
    return by_labels(obj) if controller_of(obj) is None else []
