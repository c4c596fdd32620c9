"""DefaultBinder: bind a pod through the pods/binding subresource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.engine import decisions
from phalanx.engine.framework import Emit, Handle
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups.keys import BOUND_IN_GROUP


class DefaultBinder:
    name = "DefaultBinder"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        self._handle = handle

    def bind(self, record: PodRecord, node: str, emit: Emit) -> int:
        # The annotation shows a later scheduler process that this scheduler placed the pod as a member of this group.
        # A group that is deleted and created again did not place it.
        forest = self._handle.forest
        leaf = forest.leaf_of_pod(record.namespace, record.name)
        group = forest.group(leaf) if leaf is not None else None
        mark = group.spec.uid if group is not None and group.spec is not None else None
        return emit(
            decisions.Bind,
            namespace=record.namespace,
            name=record.name,
            uid=record.uid,
            node=node,
            annotations={} if mark is None else {BOUND_IN_GROUP: mark},
        )
