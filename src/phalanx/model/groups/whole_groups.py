"""Find the group that is only disrupted as a whole: by its disruption mode, or by its rescheduling policy.

What is left of such a group could do nothing, or would be ended a little later.
"""

from __future__ import annotations

from typing import NamedTuple

from phalanx.model.groups.forest import GroupForest
from phalanx.model.groups.keys import GroupKey
from phalanx.model.groups.policy import TERMINATE_ALL

IMPLIED_BY = "scheduling.phalanx.dev/implied-by"  # on a PodDisruptionBudget that our controllers made for a gang


class WholeGroup(NamedTuple):
    key: GroupKey
    why: str


def whole_group(forest: GroupForest, leaf: GroupKey) -> WholeGroup | None:
    """Return the largest such group that a pod group is in; None: its pods go one by one."""
    found = None
    for group in [forest.group(leaf), *forest.above(leaf)]:
        if group is None or group.spec is None:
            continue
        if group.spec.disrupt_all:
            found = WholeGroup(group.key, "disruption mode all")
        elif group.policy.rescheduling == TERMINATE_ALL and group.spec.gang:
            found = WholeGroup(group.key, "rescheduling policy TerminateAll")
    return found
