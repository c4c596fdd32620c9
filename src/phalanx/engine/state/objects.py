"""Store every object that is neither a pod nor a node, for plugins and groups to look up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from phalanx.engine.events import CHANGED_BY_KIND
from phalanx.model import objects
from phalanx.model.objects import CompositePodGroup, PodGroup, ResourceQuota, Service, WorkloadPolicy

T = TypeVar("T")

KINDS: dict[type[Any], str] = {getattr(objects, kind): kind for kind in CHANGED_BY_KIND if kind not in ("Pod", "Node")}


class Objects:
    """Store objects by type, then by (namespace, name); the namespace is "" for cluster-scoped kinds."""

    __slots__ = ("_by_type", "_selecting", "version")

    def __init__(self) -> None:
        self._by_type: dict[type[Any], dict[tuple[str, str], Any]] = {cls: {} for cls in KINDS}
        # namespace -> one label of the Service's selector -> such Services by name
        self._selecting: dict[str, dict[tuple[str, str], dict[str, Service]]] = {}
        self.version = 0  # +1 with every change that may affect a decision

    def get(self, cls: type[T], namespace: str, name: str) -> T | None:
        return cast("T | None", self._by_type[cls].get((namespace, name)))

    def table(self, cls: type[T]) -> Mapping[tuple[str, str], T]:
        """Return all objects of a kind by (namespace, name), for readers that look up many."""
        return cast("Mapping[tuple[str, str], T]", self._by_type[cls])

    def all(self, cls: type[T]) -> Iterable[T]:
        """Iterate in order of first arrival, which is deterministic for the same events."""
        return cast("Iterable[T]", self._by_type[cls].values())

    def services_of(self, namespace: str, labels: Mapping[str, str]) -> list[Service]:
        """Return the Services that select pods with these labels, ordered by name. Uses an index by label."""
        asked = self._selecting.get(namespace, {})
        some = (service for pair in labels.items() for service in asked.get(pair, {}).values())
        found = [each for each in some if (each.spec.selector or {}).items() <= labels.items()]
        return sorted(found, key=lambda service: service.metadata.name)

    def _select(self, old: Service | None, new: Service | None) -> None:
        for service in (old, new):
            if service is None or not service.spec.selector:
                continue
            asked = self._selecting.setdefault(service.metadata.namespace, {})
            pairs, name = service.spec.selector.items(), service.metadata.name
            if service is new:
                pair = min(pairs, key=lambda pair: (len(asked.get(pair, ())), pair))  # the most selective label
                asked.setdefault(pair, {})[name] = service
                continue
            for pair in pairs:
                if asked.get(pair, {}).pop(name, None) is not None and not asked[pair]:
                    del asked[pair]

    def put(self, obj: Any) -> Any | None:
        """Store an object; return the one it replaces."""
        table = self._by_type[type(obj)]
        key = (obj.metadata.namespace, obj.metadata.name)
        old = table.get(key)
        table[key] = obj
        if isinstance(obj, Service):
            self._select(old, obj)
        if old is None or not _announced(old, obj):
            self.version += 1
        return old

    def remove(self, kind: str, namespace: str, name: str, uid: str = "") -> Any | None:
        """Remove an object; return it, or None if it does not exist or has another uid."""
        cls = next((cls for cls, known in KINDS.items() if known == kind), None)
        if cls is None:
            return None
        table = self._by_type[cls]
        old = table.get((namespace, name))
        if old is None or (uid and old.metadata.uid and old.metadata.uid != uid):
            return None
        del table[namespace, name]
        if cls is Service:
            self._select(old, None)
        self.version += 1
        return old


def _announced(old: Any, new: Any) -> bool:
    """Return True if the change affects no decision: a write of a group's status, or a quota, which no plugin reads."""
    if isinstance(new, ResourceQuota):
        return True
    if not isinstance(new, PodGroup | CompositePodGroup | WorkloadPolicy):
        return False
    before, after = old.metadata, new.metadata
    same = before.uid == after.uid and before.annotations == after.annotations and before.labels == after.labels
    return bool(same and old.spec == new.spec)
