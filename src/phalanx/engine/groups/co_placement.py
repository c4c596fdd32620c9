"""Find groups whose pods of equal rank share a domain (`spec.ranks.coPlaceWith` of a WorkloadPolicy)."""

from __future__ import annotations

from phalanx.model.groups import Group, GroupForest


def partner(forest: GroupForest, leaf: Group) -> Group | None:
    """Return the pod group of the same tree that `leaf` is placed with, named by its own name or its template's."""
    name = leaf.policy.co_place_with
    root = forest.root_of(leaf.key) if name else None
    for other in forest.leaves(root) if root is not None else ():
        spec = other.spec
        if other.key != leaf.key and spec is not None and name in (other.key.name, spec.template):
            return other
    return None


def cycle(forest: GroupForest, leaf: Group) -> list[Group]:
    """Return the groups of a coPlaceWith cycle that starts at `leaf`; empty if there is none. A cycle is ignored."""
    path, at = [leaf], partner(forest, leaf)
    while at is not None and at.key not in {group.key for group in path}:
        path.append(at)
        at = partner(forest, at)
    return path if at is not None and at.key == leaf.key else []
