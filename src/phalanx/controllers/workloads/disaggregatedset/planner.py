"""Plan the steps of a rollout over several roles: old replicas shrink while new ones grow, in proportion.

Every value is a list with an entry per role. `surge`: how many replicas a role may have above the target;
`unavailable`: how many below. An old revision never keeps only some roles. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

Counts = Sequence[int]


class RoleLimits(msgspec.Struct, frozen=True):
    """Surge and unavailability limits of one role."""

    surge: int = 1
    unavailable: int = 0


class Rollout(msgspec.Struct, frozen=True):
    """The state of a rollout."""

    initial: Counts  # old replicas at the start
    old: Counts
    new: Counts
    target: Counts
    limits: Sequence[RoleLimits]

    def minimum(self, role: int, new: Counts) -> int:
        """Return how many old replicas must stay in addition to `new`; 0 if the role grows."""
        if self.initial[role] < self.target[role]:
            return 0
        return max(0, self.target[role] - self.limits[role].unavailable - new[role])


Step = tuple[list[int], list[int]]  # (old, new)


def next_step(at: Rollout) -> Step | None:
    """Return the next replicas; None if the rollout is done or has to wait."""
    roles = range(len(at.initial))
    steps = max((_steps(at, role) for role in roles), default=0)
    complete = all(at.new[role] >= at.target[role] for role in roles)
    if not steps or (complete and not any(at.old)):
        return None
    if any(at.old[role] > at.initial[role] for role in roles):
        return [min(at.old[role], at.initial[role]) for role in roles], list(at.new)
    if complete:
        return [0 for _ in roles], list(at.new)
    more = _more_new(at, steps)
    if more != list(at.new) and _fits(at, more):
        return list(at.old), more
    least = [at.minimum(role, at.new) for role in roles]
    fewer = _keep_whole(at, list(map(max, _fewer_old(at, steps), least)), at.new)
    if any(fewer[role] < at.old[role] for role in roles):
        return fewer, list(at.new)
    room = [_room(at, role, more) for role in roles]
    if any(room[role] < at.old[role] for role in roles):
        return _keep_whole(at, room, more), more
    return None


def _steps(at: Rollout, role: int) -> int:
    """Return how many steps a role takes alone, in batches of its surge, or else of its unavailability."""
    limits = at.limits[role]
    batch = limits.surge if limits.surge > 0 else max(1, limits.unavailable)
    return -(-max(at.initial[role], at.target[role], 0) // batch)


def _more_new(at: Rollout, steps: int) -> list[int]:
    """Advance the role with the least progress by one step; others follow to the same step."""
    done = [at.new[role] * steps // target if target else steps for role, target in enumerate(at.target)]
    step = min(done) + 1
    return [max(at.new[role], min(target, -(-step * target // steps))) for role, target in enumerate(at.target)]


def _fewer_old(at: Rollout, steps: int) -> list[int]:
    done = [(initial - at.old[role]) * steps // initial for role, initial in enumerate(at.initial) if initial]
    step = max(done, default=0) + 1
    return [min(at.old[role], max(0, initial - step * initial // steps)) for role, initial in enumerate(at.initial)]


def _fits(at: Rollout, new: Counts) -> bool:
    return all(
        at.old[role] + new[role] <= target + at.limits[role].surge for role, target in enumerate(at.target) if target
    )


def _room(at: Rollout, role: int, new: Counts) -> int:
    """Return how many old replicas may stay in addition to `new`, at least the minimum."""
    room = max(0, min(at.old[role], at.target[role] + at.limits[role].surge - new[role]))
    return max(room, at.minimum(role, new))


def _keep_whole(at: Rollout, old: list[int], new: Counts) -> list[int]:
    """Drain all roles of the old revision or none: some roles alone cannot serve."""
    present = [role for role, initial in enumerate(at.initial) if initial]
    ended = [role for role in present if old[role] == 0]
    if not ended or len(ended) == len(present):
        return old
    if not any(at.minimum(role, new) for role in range(len(old))):
        return [0 for _ in old]
    return [1 if role in ended else count for role, count in enumerate(old)]
