"""Declare the properties of a plugin that the engine needs without calling it. The engine knows plugins only by these.

A plugin without `traits` gets conservative defaults: its verdict may depend on everything, and any change may help.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from phalanx.base.errors import ConfigProblem
from phalanx.engine.decisions import Decision
from phalanx.engine.framework.interface import Depends, Wake
from phalanx.engine.state.shapes import Shape


def _always(shape: Shape) -> bool:
    return True


def _never(shape: Shape) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Traits:
    # ---- what it reads, and which events may help units that it rejected
    depends: Depends = Depends.NODE | Depends.USAGE  # vectorised: changes of a row that matter to that row
    wakes_on: Wake = Wake.ANY  # tracking filters and PreFilter: changes that may make a rejected shape feasible
    gate_wakes: Wake = Wake.NOTHING  # PreEnqueue: changes after which it is called again
    outcomes: tuple[type[Decision], ...] | None = None  # decisions whose outcomes it reads; None: all
    helps_after: Wake = Wake.NOTHING  # PostFilter: changes after which it may help although no node has room
    default_weight: int = 1  # weight of its score if the configuration sets none
    # ---- properties of its verdicts
    room: bool = False  # its verdict depends only on free resources compared with the pod's requests
    counted: bool = False  # its verdict on a second pod on a node follows from slots, caps and conflicts of shapes
    ties: bool = False  # a placed member may make nodes feasible for other members as well as infeasible
    # Shapes for which placed members can change its verdict at all.
    touches: Callable[[Shape], bool] = _always
    # Shapes of the pods it handles: PreEnqueue, PreFilter, Reserve, Permit and PreBind skip it for all other pods.
    handles: Callable[[Shape], bool] = _always
    # Shapes for which it depends only on their own affinity terms and topology spread constraints.
    by_terms: Callable[[Shape], bool] = _never
    relieved: bool = False  # removing pods from nodes never makes its verdict worse
    preempts: bool = False  # at PostFilter: uses the engine's own preemption
    cordons: bool = False  # rejects cordoned nodes (spec.unschedulable), which also have a taint
    by_taints: bool = False  # its verdict on a node depends on the node's taints


NONE = Traits()
_NAMES = tuple(field.name for field in fields(Traits))
# formerly attributes of the plugin itself
_MOVED = ("depends", "wakes_on", "gate_wakes", "helps_after", "default_weight")
_TYPES: dict[str, type] = {
    field.name: type(value) for field in fields(Traits) if isinstance(value := getattr(NONE, field.name), int)
}


def traits_of(plugin: Any) -> Traits:
    found: Traits = getattr(plugin, "traits", NONE)
    return found


def check(plugin: Any, where: str) -> None:
    """Raise ConfigProblem for a trait that is misspelt, misplaced or of the wrong type. It would silently have no
    effect."""
    path = f"{where}.traits"
    traits = traits_of(plugin)
    if not isinstance(traits, Traits):
        raise ConfigProblem(path, f"must be a Traits, got {type(traits).__name__}")
    for name, kind in _TYPES.items():
        value = getattr(traits, name)
        if not isinstance(value, kind):
            raise ConfigProblem(path, f"{name} must be a {kind.__name__}, got {type(value).__name__}")
    for cls in type(plugin).__mro__:
        for name, value in vars(cls).items():
            if name in _MOVED:
                raise ConfigProblem(path, f"{name!r} belongs into it: traits = Traits({name}=…)")
            if isinstance(value, Depends | Wake | Traits) and name != "traits":
                raise ConfigProblem(path, f"unknown trait {name!r}: known are {', '.join(sorted(_NAMES))}")
