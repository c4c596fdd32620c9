"""Write docs/states.md from the tables of transitions: `python -m phalanx.engine.scheduling.lifecycle.states_page`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from phalanx.engine.scheduling.lifecycle import pod_lifecycle, unit_lifecycle
from phalanx.engine.scheduling.lifecycle.transitions import Transition
from phalanx.engine.scheduling.queue.units import UnitState
from phalanx.engine.state.records import PodState

_PODS = {
    PodState.PENDING: "known, without a node; a node may be nominated for it",
    PodState.ASSUMED: "counted on a node; Permit and PreBind plugins may still refuse",
    PodState.BINDING: "the Bind is decided and has no outcome yet",
    PodState.CONFIRMED: "the API server acknowledged the Bind; the informer has not shown it yet",
    PodState.BOUND: "the informer shows the pod on a node, whichever scheduler bound it",
    PodState.GONE: "deleted, finished, or replaced by a later version of the record",
}
_UNITS = {
    UnitState.NONE: "not known, or too few members are placed and none is pending",
    UnitState.HELD: "objects or members are missing, or scheduling gates are closed",
    UnitState.QUEUED: "may be tried: active, in backoff, or waiting for an event that can help",
    UnitState.EVICTING: "tried; the victims of its preemption are terminating",
    UnitState.COMMITTING: "groups only: every pod has a node, not every Bind has an outcome",
    UnitState.SCHEDULED: "groups only: the Binds that make its minimum are confirmed",
}
_HEAD = """<!-- Written by `make docs` from the tables of transitions. Do not edit. -->
# States of pods and groups

The scheduler changes a state only by these tables (`scheduling.lifecycle`). A transition that is not in the table is a
defect: it is not made, it is logged, and `phalanx_illegal_transitions_total` counts it.
"""


def page() -> str:
    pods = _section("Pod", "What the scheduler knows of one pod.", _PODS, pod_lifecycle.TRANSITIONS)
    text = "A unit is what the queue holds: a pod of no group, a PodGroup, or the root of a tree of groups."
    units = _section("Scheduling unit", text, _UNITS, unit_lifecycle.TRANSITIONS)
    return f"{_HEAD}\n{pods}\n{units}"


S = TypeVar("S", bound=Enum)


def _section(title: str, text: str, states: Mapping[S, str], table: Mapping[tuple[S, S], Transition]) -> str:
    lines = [f"## {title}", "", text, "", "| state | meaning |", "|---|---|"]
    lines += [f"| `{state.name}` | {meaning} |" for state, meaning in states.items()]
    lines += ["", "```mermaid", "stateDiagram-v2"]
    first = next(iter(states))
    lines.append(f"    [*] --> {first.name}")
    lines += [f"    {before.name} --> {after.name}: {entry.when}" for (before, after), entry in table.items()]
    return "\n".join([*lines, "```", ""])


if __name__ == "__main__":
    sys.stdout.write(page())
