"""What a reference plugin looks like. Every method has a harmless default; plugins override what they do."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.model import objects as o
from support.reference.cluster import Cluster


@dataclass(frozen=True)
class Rejection:
    """Why a node (or, from pre_filter, the whole pod) is infeasible. Unresolvable: preemption cannot help."""

    plugin: str
    reasons: tuple[str, ...]
    unresolvable: bool = False


class Plugin:
    name = ""
    weight = 0  # 0: does not score

    def pre_filter(self, pod: o.Pod, cluster: Cluster) -> Rejection | None:
        return None

    def filter(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> Rejection | None:
        return None

    def score(self, pod: o.Pod, node: o.Node, feasible: list[o.Node], cluster: Cluster) -> int:
        """Return the raw score; `feasible` are the nodes that passed all filters."""
        return 0

    def normalise(self, raw: dict[str, int], pod: o.Pod, feasible: list[o.Node], cluster: Cluster) -> dict[str, int]:
        """Normalise scores by node name to 0..100."""
        return raw

    def reject(self, *reasons: str) -> Rejection:
        return Rejection(self.name, reasons)

    def reject_for_good(self, *reasons: str) -> Rejection:
        return Rejection(self.name, reasons, unresolvable=True)


def scale_to_100(raw: dict[str, int], *, reverse: bool) -> dict[str, int]:
    """Scale in proportion to the highest score; reversed: the lowest raw score is best."""
    highest = max(raw.values(), default=0)
    if highest == 0:
        return {name: 100 if reverse else value for name, value in raw.items()}
    scaled = {name: 100 * value // highest for name, value in raw.items()}
    return {name: 100 - value for name, value in scaled.items()} if reverse else scaled
