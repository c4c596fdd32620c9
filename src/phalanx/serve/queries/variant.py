"""Variants of a cluster for what-if queries: more nodes like an existing one, or without a filter.

Changes the engine permanently, so it must run in the forked process of a query (`serve.queries.fork`).
"""

from __future__ import annotations

import msgspec

from phalanx.base.errors import BadRequest
from phalanx.base.well_known import UNSCHEDULABLE_TAINT
from phalanx.engine.engine import Engine
from phalanx.engine.events import NodeChanged, ResourceSliceChanged
from phalanx.engine.explain.new_devices import slice_copy
from phalanx.engine.explain.node_pools import renamed
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.placement.outcome import plural
from phalanx.model.objects import Node, ResourceSlice

MOST_NODES = 10_000  # added by one query


class _Value(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    pass


class MoreNodes(_Value):
    count: int
    like: str


class Variant(_Value):
    """The differences, as written in a query."""

    add_nodes: list[MoreNodes] = []
    without_filters: list[str] = []  # plugin names

    def put_into(self, engine: Engine) -> list[str]:
        """Apply the variant to an engine; return the changes as text. Raises BadRequest."""
        return [
            *(_without(engine, name) for name in self.without_filters),
            *(_add_nodes(engine, more) for more in self.add_nodes),
        ]


def _add_nodes(engine: Engine, more: MoreNodes) -> str:
    columns = engine.columns
    row = columns.row_of.get(more.like, -1)
    like = columns.nodes[row] if row >= 0 else None
    if like is None:
        raise BadRequest(
            f"there is no node {more.like[:253]!r} to add more of; see what is there with: kubectl get nodes"
        )
    if not 1 <= more.count <= MOST_NODES:
        raise BadRequest(f"{more.count} nodes cannot be added to a question: from 1 to {MOST_NODES}")
    number = 0
    slices = [each for each in engine.objects.all(ResourceSlice) if each.spec.node_name == more.like]
    for _ in range(more.count):
        number += 1
        while f"{more.like}-more-{number}" in columns.row_of:
            number += 1
        name = f"{more.like}-more-{number}"
        engine.apply(NodeChanged(renamed(like, name)))
        for each in slices:
            engine.apply(ResourceSliceChanged(slice_copy(each, more.like, name)))
    return f"asked with {plural(more.count, 'more node')} like {more.like}, empty"


def _without(engine: Engine, name: str) -> str:
    """Skip a filter. A cordon is a field and a taint: skipping it uncordons the nodes."""
    found = [plugin for profile in engine.profiles.values() for plugin in profile.filters if plugin.name == name]
    possible = sorted(
        {p.name for profile in engine.profiles.values() for p in profile.filters if not traits_of(p).counted}
    )
    if not found:
        raise BadRequest(f"there is no filter {name[:100]!r}; filters that can be left out are {', '.join(possible)}")
    if traits_of(found[0]).counted:
        raise BadRequest(
            f"{name} counts what is in use and cannot be left out: add nodes, or free room; "
            f"filters that can be left out are {', '.join(possible)}"
        )
    if traits_of(found[0]).cordons:
        for node in list(engine.columns.nodes):
            if node is not None and node.spec.unschedulable:
                engine.apply(NodeChanged(_opened(node)))
    else:
        for profile in engine.profiles.values():
            profile.leave_out(name)
        engine.evaluations.clear()
    return f"asked without the filter {name}"


def _opened(node: Node) -> Node:
    taints = [taint for taint in node.spec.taints or () if taint.key != UNSCHEDULABLE_TAINT]
    spec = msgspec.structs.replace(node.spec, unschedulable=False, taints=taints or None)
    return msgspec.structs.replace(node, spec=spec)
