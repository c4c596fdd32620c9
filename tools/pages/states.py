"""Write the states of pods and groups, with diagrams, into docs/architecture.md from the tables of transitions."""

from __future__ import annotations

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
_BEGIN, _END = "<!-- Written by `make docs` from the tables of transitions: begin -->", "<!-- end -->"
_HEAD = """## States of pods and groups

The scheduler changes a state only by these tables (`scheduling.lifecycle`). A transition that is not in the table is a
defect: it is not made, it is logged, and `phalanx_illegal_transitions_total` counts it.
"""


_STEP, _WIDTH, _HEIGHT = 150, 116, 30  # pixels: between two boxes, size of a box
_ARC = 34  # pixels of height of an arc for each box that it spans


S = TypeVar("S", bound=Enum)


def written_into(page: str) -> str:
    """Return the page with the present section between the two marks."""
    before, _, rest = page.partition(_BEGIN)
    return f"{before}{_BEGIN}\n{section()}{_END}{rest.partition(_END)[2]}"


def section() -> str:
    pods = _section("Pod", "What the scheduler knows of one pod.", "pod", _PODS, pod_lifecycle.TRANSITIONS)
    text = "A unit is what the queue holds: a pod of no group, a PodGroup, or the root of a tree of groups."
    units = _section("Scheduling unit", text, "unit", _UNITS, unit_lifecycle.TRANSITIONS)
    return f"{_HEAD}\n{pods}\n{units}"


def diagrams() -> dict[str, str]:
    """Return the images of the page by file name."""
    return {
        "states-pod.svg": _diagram(list(_PODS), pod_lifecycle.TRANSITIONS),
        "states-unit.svg": _diagram(list(_UNITS), unit_lifecycle.TRANSITIONS),
    }


def _section(
    title: str, text: str, image: str, states: Mapping[S, str], table: Mapping[tuple[S, S], Transition]
) -> str:
    lines = [f"### {title}", "", text, "", "| state | meaning |", "|---|---|"]
    lines += [f"| `{state.name}` | {meaning} |" for state, meaning in states.items()]
    lines += ["", f"![Transitions; the numbers are those of the table](images/states-{image}.svg)", ""]
    lines += ["| | from | to | when |", "|---|---|---|---|"]
    lines += [
        f"| {number} | `{before.name}` | `{after.name}` | {entry.when} |"
        for number, ((before, after), entry) in enumerate(table.items(), 1)
    ]
    return "\n".join([*lines, ""])


def _diagram(states: list[S], table: Mapping[tuple[S, S], Transition]) -> str:
    """Draw the states in a row, arcs to later ones above and to earlier ones below, numbered as in the table."""
    spans = [states.index(after) - states.index(before) for before, after in table]
    above, below = _ARC * max(spans) + 20, _ARC * max(1, -min(spans)) + 20
    top, bottom = above, above + _HEIGHT
    width, height = _STEP * len(states), bottom + below
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#7a869a"/></marker></defs>',
    ]
    for number, ((before, _), span) in enumerate(zip(table, spans, strict=True), 1):
        lines += _arc(number, _STEP * states.index(before) + _STEP // 2, span, top if span >= 0 else bottom)
    for index, state in enumerate(states):
        x = _STEP * index + (_STEP - _WIDTH) // 2
        lines.append(f'<rect x="{x}" y="{top}" width="{_WIDTH}" height="{_HEIGHT}" rx="6" fill="#1a2130"/>')
        centre = f'x="{x + _WIDTH // 2}" y="{top + 20}" text-anchor="middle"'
        lines.append(f'<text {centre} font-size="13" fill="#e9edf4">{state.name}</text>')
    return "\n".join([*lines, "</svg>", ""])


def _arc(number: int, x: int, span: int, y: int) -> list[str]:
    """Return the arc of one transition and its number. `span`: boxes to the right, negative: to the left."""
    up = -1 if span >= 0 else 1
    rise = up * (_ARC * abs(span) if span else 18)
    start, end = (x + 8 * span, x + _STEP * span - 8 * span) if span else (x - 10, x + 10)
    at_x, at_y = (start + end) / 2, y + 0.75 * rise * 4 / 3
    control = y + rise * 4 / 3
    return [
        f'<path d="M{start} {y}C{start} {control:g} {end} {control:g} {end} {y}" fill="none" stroke="#7a869a"'
        ' stroke-width="1.4" marker-end="url(#end)"/>',
        f'<circle cx="{at_x:g}" cy="{at_y:g}" r="8" fill="#b06a14"/>',
        f'<text x="{at_x:g}" y="{at_y + 3.5:g}" font-size="10" fill="#fff" text-anchor="middle">{number}</text>',
    ]
