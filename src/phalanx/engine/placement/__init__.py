"""Placing a whole group tree on free capacity: exact by counting where pods are alike, bounded search elsewhere."""

from phalanx.engine.placement.outcome import Certificate, Outcome, RuledOut, Share, Verdict
from phalanx.engine.placement.place import hopeless, place, placed_pods
from phalanx.engine.placement.problem import DEFAULT_BUDGET, Composite, Group, Leaf, Problem, ShapeRow
from phalanx.engine.placement.sentences import sentence

__all__ = [
    "DEFAULT_BUDGET",
    "Certificate",
    "Composite",
    "Group",
    "Leaf",
    "Outcome",
    "Problem",
    "RuledOut",
    "ShapeRow",
    "Share",
    "Verdict",
    "hopeless",
    "place",
    "placed_pods",
    "sentence",
]
