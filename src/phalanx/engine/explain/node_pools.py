"""Nodes that could be added to the cluster: shapes, topology domains and numbers.

A pool is a kind of node that an autoscaler can create. Declared pools list every node that may be created, with labels.
Without declared pools, any number of nodes of each existing type can be created, in the domains where it exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from phalanx.base.well_known import INSTANCE_TYPE
from phalanx.engine.state.columns import Columns
from phalanx.model.groups.keys import HOSTNAME
from phalanx.model.objects import Node, ResourceSlice
from phalanx.model.objects.cluster import Taint

MOST_TYPES = 16  # types of existing nodes, the most frequent ones
_OWN_TAINTS = "node.kubernetes.io/"  # taints of a node's own condition: a new node has none of them


class DeclaredPool(msgspec.Struct, frozen=True):
    """Every node of one shape that may be created, in the order of creation."""

    name: str
    nodes: Sequence[Node]
    slices: Mapping[str, Sequence[ResourceSlice]] = {}  # the devices of these nodes, by node


class NodePool(msgspec.Struct, frozen=True):
    """Missing nodes of one shape. `examples`: existing nodes by domain, for pools without a limit."""

    name: str
    nodes: Sequence[Node] = ()  # of a declared pool
    examples: Sequence[Node] = ()  # existing nodes; any number of copies may be created

    @property
    def example(self) -> Node:
        return (self.nodes or self.examples)[0]

    def domains(self, key: str) -> list[str]:
        """Return the domains in which nodes of this pool may be created, in a stable order."""
        found = (node.metadata.labels.get(key) for node in (*self.nodes, *self.examples))
        return list(dict.fromkeys(value for value in found if value is not None))

    def like(self, key: str, domain: str) -> Node | None:
        """Return the existing node that new ones are like in a domain; None for declared nodes."""
        return next((node for node in self.examples if not key or node.metadata.labels.get(key) == domain), None)

    def candidates(self, key: str, domain: str, most: int, first: int = 0) -> list[Node]:
        """Return up to `most` nodes that can be created in a domain, or anywhere if `key` is empty.

        `first`: number in the name of the first node, if names are not declared.
        """
        if self.nodes:
            return [node for node in self.nodes if not key or node.metadata.labels.get(key) == domain][:most]
        like = self.like(key, domain)
        if like is None:
            return []
        return [_empty_copy(like, f"{self.name}-new-{n}") for n in range(first, first + most)]


def pools_of(columns: Columns, declared: Sequence[DeclaredPool], keys: Iterable[str]) -> list[NodePool]:
    """Return the pools. `keys`: topology keys of the waiting units."""
    if declared:
        left = [NodePool(p.name, nodes=[n for n in p.nodes if n.metadata.name not in columns.row_of]) for p in declared]
        return [pool for pool in left if pool.nodes]
    return list(_existing_types(columns, set(keys)))


def _existing_types(columns: Columns, keys: set[str]) -> Iterator[NodePool]:
    """Group nodes that differ only in name and location."""
    types: dict[tuple[object, ...], list[Node]] = {}
    for node in columns.nodes:
        if node is None:
            continue
        labels = {k: v for k, v in node.metadata.labels.items() if not _names_place(k, keys)}
        allocatable = tuple(sorted((name, str(amount)) for name, amount in node.status.allocatable.items()))
        taints = tuple((taint.key, taint.value, taint.effect) for taint in _taints(node))
        types.setdefault((allocatable, taints, tuple(sorted(labels.items()))), []).append(node)
    frequent = sorted(types.values(), key=lambda same: (-len(same), same[0].metadata.name))[:MOST_TYPES]
    for same in frequent:
        by_place: dict[tuple[str | None, ...], Node] = {}
        for node in same:
            place = tuple(node.metadata.labels.get(key) for key in sorted(keys))
            by_place.setdefault(place, node)
        first = same[0]
        yield NodePool(
            first.metadata.labels.get(INSTANCE_TYPE) or f"like-{first.metadata.name}", examples=list(by_place.values())
        )


def _names_place(label: str, keys: set[str]) -> bool:
    return label == HOSTNAME or label in keys or "topology" in label


def _taints(node: Node) -> list[Taint]:
    return [taint for taint in node.spec.taints or () if not taint.key.startswith(_OWN_TAINTS)]


def _empty_copy(like: Node, name: str) -> Node:
    """Return a new, empty node like an existing one, without its cordon and condition taints."""
    spec = msgspec.structs.replace(like.spec, unschedulable=False, taints=_taints(like) or None)
    return msgspec.structs.replace(renamed(like, name), spec=spec)


def renamed(like: Node, name: str) -> Node:
    """Return a copy of a node with another name."""
    labels = dict(like.metadata.labels)
    if HOSTNAME in labels:
        labels[HOSTNAME] = name
    metadata = msgspec.structs.replace(like.metadata, name=name, uid="", labels=labels)
    return msgspec.structs.replace(like, metadata=metadata)
