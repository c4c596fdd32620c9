"""What a plugin is, for those who must know without asking it about a node. The core knows plugins by this alone.

A plugin without `traits` gets the careful defaults: whatever it says may depend on everything.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
# What else a plugin may say about itself, and of what type it is.
_OTHERS: dict[str, type] = {
    "depends": Depends,
    "wakes_on": Wake,
    "gate_wakes": Wake,
    "helps_after": Wake,
    "default_weight": int,
}


def traits_of(plugin: Any) -> Traits:
    found: Traits = getattr(plugin, "traits", NONE)
    return found


def check(plugin: Any, where: str) -> None:
    """Raises ConfigProblem for a trait that is misspelt or not of its type: it would be without effect, unnoticed."""
    path = f"{where}.traits"
    if not isinstance(traits_of(plugin), Traits):
        raise ConfigProblem(path, f"must be a Traits, got {type(plugin.traits).__name__}")
    for name, kind in _OTHERS.items():
        value = getattr(plugin, name, None)
        if value is not None and not isinstance(value, kind):
            raise ConfigProblem(path, f"{name} must be a {kind.__name__}, got {type(value).__name__}")
    for cls in type(plugin).__mro__:
        for name, value in vars(cls).items():
            if isinstance(value, Depends | Wake | Traits) and name not in _OTHERS and name != "traits":
                known = ", ".join(sorted((*_OTHERS, "traits")))
                raise ConfigProblem(path, f"unknown trait {name!r}: known are {known}")
