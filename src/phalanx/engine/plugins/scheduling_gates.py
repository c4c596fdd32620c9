"""SchedulingGates: a pod with scheduling gates does not enter the active queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.engine.framework import Code, Handle, Status
from phalanx.engine.state.records import PodRecord


class SchedulingGates:
    name = "SchedulingGates"

    def __init__(self, args: Mapping[str, Any], handle: Handle) -> None:
        pass

    def pre_enqueue(self, record: PodRecord) -> Status | None:
        gates = record.pod.spec.scheduling_gates if record.pod is not None else None
        if not gates:
            return None
        names = " ".join(gate.name for gate in gates)
        return Status(Code.UNRESOLVABLE, (f"waiting for scheduling gates: [{names}]",), self.name)
