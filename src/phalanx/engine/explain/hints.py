"""Give hints on common mistakes, such as members in another namespace, and on reservations of others. Only reads."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import TYPE_CHECKING

from phalanx.base.clock import rfc3339
from phalanx.base.well_known import NOT_READY_TAINT, OUT_OF_SERVICE_TAINT, UNREACHABLE_TAINT
from phalanx.engine.placement.outcome import plural
from phalanx.engine.preemption.victim_index import MinimumRuntime
from phalanx.engine.reservations import Reason
from phalanx.engine.reservations.holders import holder_of, waiting_pod
from phalanx.engine.state.columns import Columns
from phalanx.engine.state.records import Nominations, PodRecord
from phalanx.model.groups import POD_GROUP, Group, GroupForest, GroupKey, MemberState, PodKey

if TYPE_CHECKING:
    from phalanx.engine.scheduling.scheduler import Scheduler

Needs = tuple[tuple[int, float], ...]  # (resource id, amount)
MOST_NAMED = 3
NOT_RESPONDING = (UNREACHABLE_TAINT, NOT_READY_TAINT)


def for_group(forest: GroupForest, key: GroupKey, records: Iterable[PodRecord]) -> list[str]:
    """Suggest the probable intention, for a group that lacks members or that pods name but that does not exist."""
    group = forest.named(key)
    if group is None or key.kind != POD_GROUP:
        return []
    namesakes = forest.same_name_elsewhere(key)
    if group.spec is None:
        there = [other.key.namespace for other in namesakes if other.spec is not None]
        return [_elsewhere(f"there is a PodGroup {key.name} in namespace {', '.join(there)}")] if there else []
    if group.ready:
        return []
    found = [
        _elsewhere(
            f"pods in namespace {other.key.namespace} ({_named(other.members)}) name a PodGroup {key.name} there"
        )
        for other in namesakes
        if other.spec is None and other.members
    ]
    here = (record for record in records if record.namespace == key.namespace)
    alike = [PodKey(record.namespace, record.name) for record in here if _alike(record, group, forest)]
    if alike:
        found.append(f"pods without spec.schedulingGroup look like members ({_named(alike)}): {_join(key)}")
    return found


def lacking(columns: Columns, forest: GroupForest | None, records: Iterable[PodRecord], needs: Needs) -> Needs:
    """Return the needs with the amount that pods wait for.

    That is the largest request if no node could hold it even when empty, and the tree cannot run without that pod; else
    the smallest one that no node has free, where some pods have room already.
    """
    requests = {PodKey(record.namespace, record.name): dict(record.shape.requests) for record in records}
    largest = {rid: columns.alloc[rid].max(where=columns.alive, initial=0.0) for rid, _ in needs}
    large = {pod for pod, request in requests.items() if any(request.get(rid, 0.0) > largest[rid] for rid in largest)}
    leaf = forest.leaf_of(next(iter(large))) if forest is not None and large else None
    head = forest.group(forest.root_of(leaf) or leaf) if forest is not None and leaf is not None else None
    never = bool(large) and (head is None or not _runs_without(head, large))
    found = []
    for rid, least in needs:
        free = (columns.alloc[rid] - columns.used[rid]).max(where=columns.alive, initial=0.0)
        asked = {request.get(rid, 0.0) for request in requests.values()}
        beyond = max((amount for amount in asked if amount > largest[rid]), default=0.0) if never else 0.0
        found.append((rid, beyond or min((amount for amount in asked if amount > free), default=least)))
    return tuple(found)


def _runs_without(group: Group, pods: Container[PodKey]) -> bool:
    """Return True if the minimum of a tree can be met without these pods."""
    if group.children:
        enough = sum(_runs_without(child, pods) for child in group.children.values())
    else:
        enough = sum(pod not in pods for pod in group.members)
    return group.spec is not None and enough >= group.spec.minimum


def unconfirmed_ends(forest: GroupForest, key: GroupKey, columns: Columns) -> list[str]:
    """Name terminating members on nodes that do not respond, for a group that lacks members.

    No kubelet confirms the end of such a pod, so it stays, and many controllers replace it only when it is gone.
    """
    group = forest.named(key)
    if group is None or group.ready:
        return []
    pods: dict[str, list[str]] = {}
    for leaf in forest.leaves(key):
        for name, member in leaf.members.items():
            row = columns.row_of.get(member.node, -1) if member.state is MemberState.ENDING else -1
            node = columns.nodes[row] if row >= 0 else None
            if node is not None and any(taint.key in NOT_RESPONDING for taint in node.spec.taints or ()):
                pods.setdefault(member.node, []).append(name.name)
    return [
        f"{_few(sorted(names))} cannot end because node {node} does not respond, and may be replaced only when gone: "
        f"delete the node, or taint it {OUT_OF_SERVICE_TAINT}=nodeshutdown:NoExecute if it is off"
        for node, names in sorted(pods.items())[:MOST_NAMED]
    ]


def for_pod(forest: GroupForest, record: PodRecord) -> list[str]:
    """Suggest, for a pod without a group, a group that lacks members and probably is its own."""
    return [
        f"PodGroup {group.key.name} lacks members and this pod looks like one: {_join(group.key)}"
        for group in forest.in_namespace(record.namespace)
        if group.key.kind == POD_GROUP and group.spec is not None and not group.ready and _alike(record, group, forest)
    ][:1]


def of_others(scheduler: Scheduler, priority: int, own: Iterable[str]) -> list[str]:
    """Say what other pods and groups keep from waiting pods of that priority."""
    return [
        *kept(scheduler.nominations, priority, own),
        *protected(scheduler.preemption.victim_index.minimum_runtime, priority),
    ]


def of_incomplete(nominations: Nominations, forest: GroupForest, key: GroupKey) -> list[str]:
    """Say what room is reserved for pods to come of a group that waits for them."""
    return kept(nominations, 0, (), {leaf.key.name for leaf in forest.leaves(key)})


def kept(
    nominations: Nominations, priority: int, own: Iterable[str], groups: Container[str] | None = None
) -> list[str]:
    """Name, for waiting pods of that priority, nodes that look free but are reserved for nominated pods.

    `groups`: whatever the priority, only what is reserved for pods to come of these.
    """
    mine = set(own)
    nodes: dict[str, dict[str, None]] = {}  # reserved for -> nodes
    counts: dict[str, int] = {}
    for node, record in nominations.all():
        if waiting_pod(record) in mine or record.row >= 0 or (groups is None and record.priority < priority):
            continue
        holder = holder_of(record)
        if groups is not None and (holder.reason is not Reason.EXPECTED or holder.name not in groups):
            continue
        owner = "with a nominated node"
        if holder.reason is Reason.EXPECTED:
            owner = f"to come of group {holder.name}"
        elif holder.reason is Reason.PROMISED:
            owner = f"of {holder.kind} {holder.namespace}/{holder.name}, which waits for them"
        nodes.setdefault(owner, {})[node] = None
        counts[owner] = counts.get(owner, 0) + 1
    found = []
    for owner, where in sorted(nodes.items()):
        names = _few(sorted(where))
        found.append(f"room on {names} is kept for {counts[owner]} pod{'s' * (counts[owner] > 1)} {owner}")
    return found[:MOST_NAMED]


def protected(runtime: MinimumRuntime, priority: int) -> list[str]:
    """Say that groups of lower priority have just started and cannot be preempted yet."""
    ends = runtime.ends(priority)
    if not ends:
        return []
    groups = f"{plural(len(ends), 'group')} of lower priority cannot be preempted yet (preemption.minRuntimeSeconds)"
    return [f"{groups}; the first one can be at {rfc3339(ends[0])}"]


def _alike(record: PodRecord, group: Group, forest: GroupForest) -> bool:
    """Return True if the pod is named after the group or has all labels of one of its members."""
    if forest.leaf_of(PodKey(record.namespace, record.name)) is not None:
        return False
    if record.name.startswith(f"{group.key.name}-"):
        return True
    member = next(iter(group.members.values()), None)
    labels = member.pod.metadata.labels if member is not None else {}
    return bool(labels) and labels.items() <= record.labels.items()


def _elsewhere(what: str) -> str:
    return f"{what}: pods and their group share one namespace"


def _join(key: GroupKey) -> str:
    return f"a pod joins with schedulingGroup: {{podGroupName: {key.name}}} when it is created"


def _named(pods: Iterable[PodKey]) -> str:
    return _few(sorted(pod.name for pod in pods))


def _few(names: list[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else "")
