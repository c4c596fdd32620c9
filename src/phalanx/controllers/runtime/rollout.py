"""Arithmetic of a Deployment's rollout: the next number of replicas of each ReplicaSet. Pure functions.

As upstream: surge rounds up, unavailable rounds down, never both zero. Unhealthy old replicas are removed first, from
the oldest ReplicaSet. A scale change during a rollout is distributed in proportion.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from phalanx.model.kinds import Json
from phalanx.model.rules.assembly import scaled


class Allowance(msgspec.Struct, frozen=True):
    surge: int
    unavailable: int


@dataclass(frozen=True, slots=True)
class ReplicaSetShare:
    """The state of one ReplicaSet in a rollout."""

    name: str
    created: str
    wanted: int
    available: int
    maximum: int = 0  # replicas + surge of the Deployment when this was last scaled; 0: not recorded


def allowance(spec: Json) -> Allowance:
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return Allowance(0, 0)
    rolling = strategy.get("rollingUpdate") or {}
    replicas = int(spec.get("replicas", 1))
    surge = scaled(rolling.get("maxSurge", "25%"), replicas, up=True)
    unavailable = scaled(rolling.get("maxUnavailable", "25%"), replicas, up=False)
    if not surge and not unavailable:
        unavailable = 1
    return Allowance(surge, min(unavailable, replicas))


def grown(new: ReplicaSetShare, old: Sequence[ReplicaSetShare], replicas: int, allowed: Allowance) -> int:
    """Return the replicas of the new ReplicaSet in the next step."""
    if new.wanted >= replicas:
        return replicas
    room = replicas + allowed.surge - new.wanted - sum(share.wanted for share in old)
    return min(replicas, new.wanted + max(0, room))


def scaled_down(
    new: ReplicaSetShare, old: Sequence[ReplicaSetShare], replicas: int, allowed: Allowance
) -> dict[str, int]:
    """Return the replicas of the old ReplicaSets in the next step, only those that change."""
    minimum = replicas - allowed.unavailable
    total = new.wanted + sum(share.wanted for share in old)
    # New replicas that are not available yet cannot replace old ones.
    budget = total - minimum - (new.wanted - new.available)
    if budget <= 0:
        return {}
    sizes = {share.name: share.wanted for share in old}
    by_age = sorted(old, key=lambda share: (share.created, share.name))
    for share in by_age:  # unhealthy pods serve no traffic
        step = min(share.wanted - share.available, budget)
        if step > 0:
            sizes[share.name] -= step
            budget -= step
    spare = new.available + sum(share.available for share in old) - minimum
    for share in by_age:
        step = min(sizes[share.name], spare, budget)
        if step > 0:
            sizes[share.name] -= step
            spare -= step
            budget -= step
    return {share.name: sizes[share.name] for share in old if sizes[share.name] != share.wanted}


def shared_out(shares: Sequence[ReplicaSetShare], replicas: int, allowed: Allowance) -> dict[str, int]:
    """Return proportionally scaled sizes after a change of scale while several ReplicaSets have pods."""
    present = sum(share.wanted for share in shares)
    target = replicas + allowed.surge if replicas else 0
    left = target - present
    if not left:
        return {share.name: share.wanted for share in shares}
    # Growth favours the newest of the largest sets; shrinking starts with the oldest of the largest.
    order = sorted(shares, key=lambda share: (share.created, share.name), reverse=left > 0)
    order.sort(key=lambda share: -share.wanted)
    sizes = {}
    for share in order:
        step = _fraction(share, target, present, left)
        sizes[share.name] = share.wanted + step
        left -= step
    largest = order[0].name
    sizes[largest] = max(0, sizes[largest] + left)  # remainder of rounding
    return sizes


def _fraction(share: ReplicaSetShare, target: int, present: int, left: int) -> int:
    if not share.wanted or not left:
        return 0
    before = share.maximum or present
    step = math.floor(share.wanted * target / before + 0.5) - share.wanted if before else 0
    return max(0, min(step, left)) if left > 0 else min(0, max(step, left, -share.wanted))
