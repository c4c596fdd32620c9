"""DefaultBinder: bind by the pods/binding subresource."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.engine import decisions
from phalanx.engine.framework import Emit, Handle
from phalanx.engine.records import PodRecord


class DefaultBinder:
    name = "DefaultBinder"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        pass

    def bind(self, record: PodRecord, node: str, emit: Emit) -> int:
        return emit(decisions.Bind, namespace=record.namespace, name=record.name, uid=record.uid, node=node)
