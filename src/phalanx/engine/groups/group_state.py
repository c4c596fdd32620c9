"""Compute the state of a group; kubectl, top, the dashboard, why and the conditions all use this function."""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

import msgspec

from phalanx.model.groups import Group, GroupForest, GroupKey, MemberState
from phalanx.model.groups.expected_pods import MOST, expected

REVISION = "leaderworkerset.sigs.k8s.io/template-revision-hash"  # label of the group of a replica

# Labels of pods that say which run of their set they are of, with the word for it.
RUNS = {"jobset.sigs.k8s.io/restart-attempt": "restart attempt", "controller-revision-hash": "revision"}


def revision_of(group: Group) -> str:
    """Return the workload revision of a group; "" if it has none. During a rollout, groups of two revisions exist."""
    labels = group.source.metadata.labels if group.source is not None else None
    return (labels or {}).get(REVISION, "")


def settings_in_words(group: Group) -> list[str]:
    """Return the settings of the group's object besides minimum and topology, for `why`, `top` and the dashboard."""
    spec, revision = group.spec, revision_of(group)
    if spec is None:
        return []
    found = [f"prefers one {spec.preferred_key}"] if spec.preferred_key is not None else []
    if spec.disrupt_all:
        found.append("disrupted as a whole")
    if revision:
        found.append(f"revision {revision}")
    return found if group.composite or revision else [*found, *_runs_in_words(group)]


def _runs_in_words(group: Group) -> list[str]:
    """Return the restart of a JobSet, or the revisions of a rolling StatefulSet, that pods of a group are of."""
    labels = [member.pod.metadata.labels for member in group.members.values() if member.pod.metadata.labels]
    if not labels or REVISION in labels[0]:
        return []  # leader and workers of a replica are of different StatefulSets
    found = []
    for label, word in RUNS.items():
        runs = sorted({each[label] for each in labels if label in each})
        if len(runs) > 1:
            found.append(f"{word}s {' and '.join(runs)}")
        elif runs and word != "revision" and runs != ["0"]:
            found.append(f"{word} {runs[0]}")
    return found


class Phase(enum.StrEnum):
    WAITING = "Waiting"  # fewer members than it needs exist
    SCHEDULING = "Scheduling"  # its members exist, but it is not placed
    RUNNING = "Running"  # its minimum has nodes
    DEGRADED = "Degraded"  # it had its minimum; fewer members are on nodes now
    PREEMPTING = "Preempting"  # it is being evicted; members are still on nodes
    PREEMPTED = "Preempted"  # it was evicted; no member is on a node
    COMPLETED = "Completed"  # its members have succeeded
    TIMED_OUT = "TimedOut"  # a time limit of its policy has passed
    INVALID = "Invalid"  # no pod of it is scheduled before its tree is corrected


HEALTHY = (Phase.RUNNING, Phase.COMPLETED)


class GroupState(msgspec.Struct, frozen=True):
    phase: Phase
    placed: int  # members on nodes: pods, or child groups that have their minimum
    wanted: int  # required members
    minimum: int
    pods: int  # `wanted` in pods; equal for a leaf
    placed_pods: int

    def __str__(self) -> str:
        text = f"{self.phase} {self.placed} of {self.wanted}"
        return f"{text} (below minimum)" if self.phase is Phase.DEGRADED else text


class Facts(msgspec.Struct, frozen=True):
    """Facts about a group that its members do not show."""

    started: bool = False  # it had its minimum before
    disrupted: bool = False  # it is evicted: it has DisruptionTarget, or lost all its members to preemption
    timed_out: bool = False
    unready: Mapping[GroupKey, Collection[str]] = {}  # leaf -> pods not ready for longer than its policy allows


NO_FACTS = Facts()


def group_state(forest: GroupForest, group: Group, facts: Facts = NO_FACTS) -> GroupState:
    leaves = list(forest.leaves(group.key))
    pods, placed_pods = sum(map(wanted_pods, leaves)), sum(_placed(leaf, facts) for leaf in leaves)
    minimum = group.spec.minimum if group.spec is not None else 1
    if group.composite:
        cyclic = bool(forest.resolve(group.key).cycle)
        placed = 0 if cyclic else _placed(group, facts)
        wanted = max(len(group.children), minimum)
    else:
        placed, wanted = placed_pods, pods
    phase = _phase(forest, group, leaves, facts, placed, minimum)
    return GroupState(phase, placed, wanted, minimum, pods, placed_pods)


def _placed(group: Group, facts: Facts) -> int:
    """Return how many pods of a leaf, or child groups of a composite, count for its minimum and are ready in time."""
    if not group.composite:
        return group.placed - len(facts.unready.get(group.key, ()))
    if not facts.unready:
        return sum(child.satisfied for child in group.children.values())
    return sum(
        child.spec is not None and _placed(child, facts) >= child.spec.minimum for child in group.children.values()
    )


def wanted_pods(leaf: Group) -> int:
    """Return how many pods a leaf has, or is expected to have."""
    size = expected(leaf.source)
    least = leaf.spec.minimum if leaf.spec is not None and leaf.spec.gang else 0
    desired = leaf.policy.desired_count or 0
    return max(leaf.known, least, size if size < MOST else 0, min(desired, leaf.known))


def _phase(forest: GroupForest, group: Group, leaves: list[Group], facts: Facts, placed: int, minimum: int) -> Phase:
    on_nodes = sum(leaf.members_on_nodes for leaf in leaves)
    if facts.disrupted and (on_nodes or not facts.timed_out):
        return Phase.PREEMPTING if on_nodes else Phase.PREEMPTED
    if _completed(leaves):
        return Phase.COMPLETED
    if placed >= minimum and on_nodes:
        return Phase.RUNNING
    if facts.timed_out:
        return Phase.TIMED_OUT
    if facts.started and on_nodes:
        return Phase.DEGRADED
    return pending_phase(forest, group)


def pending_phase(forest: GroupForest, group: Group) -> Phase:
    """Return the phase of a group that does not run, whatever it did before."""
    key = forest.root_of(group.key)
    root = forest.group(key) if key is not None else None
    if (root or group).bad:
        return Phase.INVALID
    return Phase.SCHEDULING if root is not None and root.ready and group.ready else Phase.WAITING


def _completed(leaves: list[Group]) -> bool:
    """Return whether members have succeeded and none is pending, running or failed without a replacement."""
    succeeded = 0
    for leaf in leaves:
        if leaf.present or leaf.counts[MemberState.ENDING] or leaf.counts[MemberState.FAILED]:
            return False
        succeeded += leaf.counts[MemberState.SUCCEEDED]
    return succeeded > 0
