"""Protect CompositePodGroups from deletion while they have children (KEP-6012).

Kubernetes 1.37 protects PodGroups this way and not CompositePodGroups. The webhook adds the finalizer on creation, the
controller to composites that the webhook did not see, and the controller removes it when the last child is gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from phalanx.base.client import Client
from phalanx.base.errors import Conflict, NotFound
from phalanx.controllers.runtime.cache import Json, Key
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.runtime.groups import Groups
from phalanx.controllers.runtime.ownership import deleting

_SUFFIX = "/compositepodgroup-protection"
COMPOSITE_PROTECTION = f"scheduling.phalanx.dev{_SUFFIX}"
_CHILDREN = "parent composite"  # the name of an index


def finalizer_patch(finalizers: Sequence[str]) -> list[Json]:
    """Return the JSON patch that adds the finalizer; empty if Kubernetes or we protect the composite already."""
    if any(name.endswith(_SUFFIX) for name in finalizers):
        return []
    if not finalizers:
        return [{"op": "add", "path": "/metadata/finalizers", "value": [COMPOSITE_PROTECTION]}]
    return [{"op": "add", "path": "/metadata/finalizers/-", "value": COMPOSITE_PROTECTION}]


class CompositeProtection(Controller):
    name = "composite-protection"

    def __init__(self, client: Client, groups: Groups) -> None:
        super().__init__()
        self._client = client
        self._composites, self._leaves = groups.composites, groups.pod_groups
        for cache in (self._composites, self._leaves):
            cache.index(_CHILDREN, _by_parent)
        self._composites.on_change(self._composite_changed)
        self._leaves.on_change(self._child_changed)

    def _composite_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None:
            self.queue.add(key)
        self._child_changed(key, new, old)

    def _child_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        parent = _parent(old) if new is None and old is not None else ""
        if parent:
            self.queue.add(Key(key.namespace, parent))

    async def reconcile(self, key: Key) -> None:
        composite = self._composites.get(key.namespace, key.name)
        if composite is None:
            return
        finalizers = composite["metadata"].get("finalizers") or []
        if deleting(composite):
            if COMPOSITE_PROTECTION in finalizers and not self._in_use(key):
                await self._write(composite, [name for name in finalizers if name != COMPOSITE_PROTECTION])
        elif finalizer_patch(finalizers):
            await self._write(composite, [*finalizers, COMPOSITE_PROTECTION])

    def _in_use(self, key: Key) -> bool:
        """Return whether the composite has children. One in a cycle of parents is unusable and may be deleted."""
        children = (cache.by_index(_CHILDREN, str(key)) for cache in (self._composites, self._leaves))
        return any(children) and not self._in_cycle(key)

    def _in_cycle(self, key: Key) -> bool:
        seen: set[str] = set()
        name = key.name
        while name and name not in seen:
            seen.add(name)
            above = self._composites.get(key.namespace, name)
            name = _parent(above) if above is not None else ""
        return name == key.name

    async def _write(self, composite: Json, finalizers: list[str]) -> None:
        meta = composite["metadata"]
        body = {**composite, "metadata": {**meta, "finalizers": finalizers}}
        with suppress(Conflict, NotFound):  # changed or deleted: its watch event requeues it
            await self._client.update(self._composites.resource, meta["name"], body, meta["namespace"])


def _parent(group: Json) -> str:
    return str((group.get("spec") or {}).get("parentCompositePodGroupName") or "")


def _by_parent(group: Json) -> list[str]:
    parent = _parent(group)
    return [f"{group['metadata']['namespace']}/{parent}"] if parent else []
