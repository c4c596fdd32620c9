"""What a plugin is, for those who must know without asking it about a node. The core knows plugins by this alone.

A plugin without `traits` gets the careful defaults: whatever it says may depend on everything, and any change may help.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from phalanx.base.errors import ConfigProblem
from phalanx.engine.framework.interface import Depends, Wake
from phalanx.engine.state.shapes import Shape


def _always(shape: Shape) -> bool:
    return True


def _never(shape: Shape) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Traits:
    # ---- what it reads, and which events may help units that it refused
    depends: Depends = Depends.NODE | Depends.USAGE  # vectorised: changes of a row that matter to that row
    wakes_on: Wake = Wake.ANY  # tracking filters and PreFilter: changes that may make a shape feasible it rejected
    gate_wakes: Wake = Wake.NOTHING  # PreEnqueue: changes after which it is asked again
    helps_after: Wake = Wake.NOTHING  # PostFilter: changes after which it may help although no node has room
    default_weight: int = 1  # of its score, where the configuration names none
    # ---- what follows from its verdicts
    room: bool = False  # its verdict is about what is free of what a pod asks for, and about nothing else
    counted: bool = False  # what it says of a second pod on a node follows from slots, caps and conflicts of shapes
    ties: bool = False  # a member on a node may open nodes to its fellows as well as close them
    # For which shapes members on nodes can change its verdict at all.
    touches: Callable[[Shape], bool] = _always
    # For which shapes it goes by nothing but their own terms of affinity and rules of spreading.
    by_terms: Callable[[Shape], bool] = _never
    relieved: bool = False  # fewer pods on nodes are never worse
    preempts: bool = False  # at PostFilter: room is made by the engine's own preemption
    cordons: bool = False  # it keeps pods off nodes that are closed (spec.unschedulable), which is also a taint
    by_taints: bool = False  # its verdict about a node is about the node's taints


NONE = Traits()
_NAMES = tuple(field.name for field in fields(Traits))
_MOVED = ("depends", "wakes_on", "gate_wakes", "helps_after", "default_weight")  # once attributes of the plugin itself
_TYPES: dict[str, type] = {
    field.name: type(value) for field in fields(Traits) if isinstance(value := getattr(NONE, field.name), int)
}


def traits_of(plugin: Any) -> Traits:
    found: Traits = getattr(plugin, "traits", NONE)
    return found


def check(plugin: Any, where: str) -> None:
    """Raises ConfigProblem for a trait that is misspelt, out of its place or not of its type: it would be without
    effect, unnoticed."""
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
