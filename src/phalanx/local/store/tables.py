"""Current objects in memory, by resource and namespace, listed in order without sorting again what did not change.

Never hands out anything that changes later: lists are tuples, made on first demand and kept until the next write.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.local.store.contract import Entry, Key


class _Names:
    """The objects of one resource in one namespace."""

    __slots__ = ("_listed", "_order", "_stale", "entries")

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self._order: list[str] = []  # sorted names; wrong while _stale
        self._stale = False
        self._listed: tuple[Entry, ...] | None = ()

    def set(self, name: str, entry: Entry) -> None:
        if name not in self.entries:
            self._stale = True
        self.entries[name] = entry
        self._listed = None

    def remove(self, name: str) -> None:
        del self.entries[name]
        self._stale = True
        self._listed = None

    def listed(self) -> tuple[Entry, ...]:
        if self._listed is None:
            if self._stale:
                self._order = sorted(self.entries)
                self._stale = False
            self._listed = tuple(map(self.entries.__getitem__, self._order))
        return self._listed


class Tables:
    def __init__(self) -> None:
        self._resources: dict[str, dict[str, _Names]] = {}
        self._listed: dict[str, tuple[Entry, ...]] = {}  # all namespaces of a resource
        self.count = 0

    def get(self, key: Key) -> Entry | None:
        names = self._resources.get(key[0], {}).get(key[1])
        return names.entries.get(key[2]) if names else None

    def set(self, entry: Entry) -> None:
        resource, namespace, name = entry.key
        namespaces = self._resources.get(resource)
        if namespaces is None:
            namespaces = self._resources[resource] = {}
        names = namespaces.get(namespace)
        if names is None:
            names = namespaces[namespace] = _Names()
        before = len(names.entries)
        names.set(name, entry)
        self.count += len(names.entries) - before
        self._listed.pop(resource, None)

    def remove(self, key: Key) -> None:
        resource, namespace, name = key
        names = self._resources[resource][namespace]
        names.remove(name)
        self.count -= 1
        if not names.entries:
            del self._resources[resource][namespace]
        self._listed.pop(resource, None)

    def all(self) -> Sequence[Entry]:
        return [
            entry
            for namespaces in self._resources.values()
            for names in namespaces.values()
            for entry in names.entries.values()
        ]

    def list(self, resource: str, namespace: str) -> Sequence[Entry]:
        namespaces = self._resources.get(resource)
        if not namespaces:
            return ()
        if namespace or len(namespaces) == 1:
            names = namespaces.get(namespace) if namespace else next(iter(namespaces.values()))
            return names.listed() if names else ()
        listed = self._listed.get(resource)
        if listed is None:
            entries: list[Entry] = []
            for key in sorted(namespaces):
                entries.extend(namespaces[key].listed())
            listed = self._listed[resource] = tuple(entries)
        return listed
