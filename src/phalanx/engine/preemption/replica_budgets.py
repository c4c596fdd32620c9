"""Count preempted replicas against `disruption.maxUnavailableReplicas` of their WorkloadPolicy, as a disruption budget.

A replica is a tree of groups for which the policy is in effect. It is unavailable while one of its pod groups has fewer
pods on nodes than its minimum. A replica that is evicted as a whole counts once, else each evicted pod counts.
"""

from __future__ import annotations

from phalanx.model.groups import Group, GroupForest, GroupKey
from phalanx.model.groups.policies import Name


class ReplicaBudgets:
    def __init__(self, forest: GroupForest) -> None:
        self._forest = forest
        self.names: list[str] = []
        self.allowed: list[int] = []
        self.of: dict[str, int] = {}  # pod key -> number of the budget that its eviction counts against

    def refresh(self) -> bool:
        """Bring the budgets up to date; return True if they changed."""
        limits = self._forest.policies.limited()
        if not limits and not self.names:
            return False
        before = (self.names, self.allowed, self.of)
        self.names, self.allowed, self.of = [], [], {}
        for name, limit in sorted(limits.items()):
            roots = self._replicas(name)
            available = [root for root in roots if all(leaf.satisfied for leaf in self._forest.leaves(root))]
            for root in available:
                for pod in self._counted(root):
                    self.of[pod] = len(self.names)
            self.names.append(f"{name[0]}/WorkloadPolicy {name[1]}")
            self.allowed.append(max(0, limit - (len(roots) - len(available))))
        return before != (self.names, self.allowed, self.of)

    def _replicas(self, name: Name) -> list[GroupKey]:
        roots = (self._forest.root_of(key) for key, chosen in self._forest.policies.chosen.items() if chosen == name)
        return list(dict.fromkeys(root for root in roots if root is not None))

    def _counted(self, root: GroupKey) -> list[str]:
        """Return the pods of a replica that count: one if it is only evicted as a whole."""
        group = self._forest.group(root)
        leaves = list(self._forest.leaves(root))
        pods = sorted(str(key) for leaf in leaves for key, member in leaf.members.items() if member.node)
        return pods[:1] if group is not None and _whole(group) else pods


def _whole(group: Group) -> bool:
    return group.spec is not None and group.spec.disrupt_all
