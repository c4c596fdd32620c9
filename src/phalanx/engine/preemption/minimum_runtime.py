"""Protect groups from preemption until they have run for their policy's `preemption.minRuntimeSeconds`.

A group starts when its first placed member starts. If no member reports a start time yet, the group starts when the
scheduler first sees it. Time alone ends the protection, so the scheduler calls `next_time` to know when that happens.
"""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.model.groups import GroupForest, GroupKey


class MinimumRuntime:
    def __init__(self, forest: GroupForest) -> None:
        self._forest = forest
        self._starts: dict[GroupKey, dict[str, float]] = {}  # leaf -> pod -> start, seconds; groups with the policy
        self._until: dict[GroupKey, float] = {}  # leaf -> end of its protection, seconds

    def clear(self) -> None:
        self._starts, self._until = {}, {}

    def put(self, leaf: GroupKey, pod: str, start: float) -> None:
        group = self._forest.group(leaf)
        if group is not None and group.policy.min_runtime_seconds:
            self._starts.setdefault(leaf, {})[pod] = start

    def drop(self, leaf: GroupKey, pod: str) -> None:
        starts = self._starts.get(leaf)
        if starts is not None:
            starts.pop(pod, None)
            if not starts:
                del self._starts[leaf]

    def refresh(self, now: float) -> list[GroupKey]:
        """Return the leaf groups whose protection began or ended since the last call."""
        if not self._starts and not self._until:
            return []
        before, self._until = self._until, {}
        for leaf, starts in self._starts.items():
            group = self._forest.group(leaf)
            seconds = group.policy.min_runtime_seconds if group is not None else 0
            until = min(starts.values()) + seconds
            if now < until:
                self._until[leaf] = until
        return [leaf for leaf in {**before, **self._until} if (leaf in before) != (leaf in self._until)]

    def protects(self, leaves: Iterable[GroupKey]) -> bool:
        return any(leaf in self._until for leaf in leaves)

    def next_time(self) -> float | None:
        return min(self._until.values(), default=None)
