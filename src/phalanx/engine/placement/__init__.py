"""Place a whole group tree on free capacity: exactly by counting for equal pods, else by bounded search."""

from phalanx.engine.placement.outcome import Certificate, RuledOut, SearchOutcome, SearchVerdict, Share, sentence
from phalanx.engine.placement.place import hopeless, place, placed_pods
from phalanx.engine.placement.problem import DEFAULT_BUDGET, Composite, Leaf, PlacementProblem, ShapeRow, Subtree

__all__ = [
    "DEFAULT_BUDGET",
    "Certificate",
    "Composite",
    "Leaf",
    "PlacementProblem",
    "RuledOut",
    "SearchOutcome",
    "SearchVerdict",
    "ShapeRow",
    "Share",
    "Subtree",
    "hopeless",
    "place",
    "placed_pods",
    "sentence",
]
