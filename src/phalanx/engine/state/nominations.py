"""Track nominated pods (status.nominatedNodeName), which reserve resources against pods of equal or lower priority."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from phalanx.engine.state.journal import ChangeLog
from phalanx.engine.state.records import PodRecord


class Nominations:
    __slots__ = ("_by_node", "_node_of", "changes", "version")

    def __init__(self) -> None:
        self._by_node: dict[str, dict[str, PodRecord]] = {}
        self._node_of: dict[str, str] = {}
        self.version = 0
        self.changes = ChangeLog[str]()  # nodes whose nominations changed

    def __bool__(self) -> bool:
        return bool(self._node_of)

    def set(self, record: PodRecord, node: str) -> None:
        """Nominate a node for a pending pod; replaces an earlier nomination."""
        self.clear(record)
        if node:
            record.nominated = node
            self._by_node.setdefault(node, {})[record.key] = record
            self._node_of[record.key] = node
            self._changed(node)

    def clear(self, record: PodRecord) -> str:
        """Clear the nomination of a pod; return its node."""
        record.nominated = ""
        node = self._node_of.pop(record.key, "")
        if node:
            pods = self._by_node[node]
            del pods[record.key]
            if not pods:
                del self._by_node[node]
            self._changed(node)
        return node

    def _changed(self, node: str) -> None:
        self.version += 1
        self.changes.append(node)

    def all(self) -> Iterator[tuple[str, PodRecord]]:
        """Iterate over all nominations as (node, pod)."""
        for node, pods in self._by_node.items():
            for record in pods.values():
                yield node, record

    def on(self, node: str) -> Sequence[PodRecord]:
        return list(self._by_node.get(node, {}).values())

    def rivals(self, node: str, record: PodRecord) -> Sequence[PodRecord]:
        """Return the other pods nominated to this node for which `record` must leave room."""
        pods = self._by_node.get(node)
        if not pods:
            return ()
        return [other for other in pods.values() if other.priority >= record.priority and other.key != record.key]
