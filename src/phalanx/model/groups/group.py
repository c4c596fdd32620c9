"""One group of a forest: its spec, its members, and the counts that its parent needs."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from phalanx.model.groups.keys import (
    BOUND_IN_GROUP,
    COMPOSITE,
    DEVICE_KEY,
    DISRUPTION,
    KUEUE_PREFERRED_TOPOLOGY,
    KUEUE_REQUIRED_TOPOLOGY,
    POD_GROUP,
    PREFERRED_TOPOLOGY,
    UNUSABLE,
    GroupKey,
    PodKey,
    device_attribute,
)
from phalanx.model.groups.policy import DEFAULT
from phalanx.model.objects.groups import (
    CompositePodGroup,
    CompositeSchedulingPolicy,
    PodGroup,
    PodGroupTemplate,
    SchedulingConstraints,
    SchedulingPolicy,
    Workload,
)
from phalanx.model.objects.meta import ObjectMeta
from phalanx.model.objects.pod import Pod

PREEMPT_LOWER = "PreemptLowerPriority"


class MemberState(enum.IntEnum):  # integers: counted with every event of every pod
    """What a member counts as. Never set, always derived from the pod's object and its placement (`member_state`)."""

    PENDING = 0
    ASSUMED = 1  # placed by this scheduler, the bind not yet answered
    CONFIRMED = 2  # the bind is acknowledged, the object seen does not say so yet
    RUNNING = 3  # bound to a node
    SUCCEEDED = 4  # counts only if its controller marked it as not replaced (see `Group.complete`)
    FAILED = 5  # does not count: it has to be replaced
    LEAVING = 6  # deleted before it got a node
    FOREIGN = 7  # pending, but another scheduler's
    ENDING = 8  # terminating on its node: determines the domain, and does not count
    EARLIER = 9  # runs, but was bound for an earlier Workload of this name


# Tuples, and names of their own for the most frequent: hashing a member of an enum and looking it up are slow.
PENDING, ASSUMED, CONFIRMED = MemberState.PENDING, MemberState.ASSUMED, MemberState.CONFIRMED
RUNNING, SUCCEEDED, ENDING = MemberState.RUNNING, MemberState.SUCCEEDED, MemberState.ENDING
OURS = (ASSUMED, CONFIRMED)  # on a node by our decision, which their objects do not show yet
PLACED = (*OURS, RUNNING)
KNOWN = (*PLACED, PENDING)
ON_NODE = (*PLACED, ENDING)


Placement = tuple[str, bool]  # node, and whether the bind is acknowledged


def member_state(pod: Pod, placement: Placement | None, *, ours: bool, uid: str = "") -> tuple[MemberState, str]:
    """Derive what a pod counts as in its group, and its node.

    `placement`: what this scheduler has decided while the object does not show it; it follows the pod's `PodState`.
    `ours`: this scheduler schedules the pod. `uid`: of the Workload, for groups that are not objects.
    """
    if pod.status.phase == "Succeeded":
        return SUCCEEDED, pod.spec.node_name
    if pod.status.phase == "Failed":
        return MemberState.FAILED, pod.spec.node_name
    if pod.spec.node_name:
        # A Workload is not protected while its pods exist, as a PodGroup is: running pods may be of its predecessor.
        if uid and pod.metadata.annotations.get(BOUND_IN_GROUP, uid) != uid:
            return MemberState.EARLIER, pod.spec.node_name
        return (RUNNING if pod.metadata.deletion_timestamp is None else ENDING), pod.spec.node_name
    if placement is not None:
        return (CONFIRMED if placement[1] else ASSUMED), placement[0]
    if pod.metadata.deletion_timestamp is not None:
        return MemberState.LEAVING, ""
    return (PENDING if ours else MemberState.FOREIGN), ""


class Member(msgspec.Struct, eq=False):
    """Never changed, always replaced. Not frozen: three are made for every pod, and that costs."""

    pod: Pod
    state: MemberState
    node: str  # where it is, or is assumed to be


class GroupSpec(msgspec.Struct, frozen=True):
    """The spec of a group, whatever API its object is of."""

    parent: GroupKey | None
    gang: bool
    minimum: int  # minCount of pods or minGroupCount of children; 1 for basic
    topology_key: str | None
    preferred_key: str | None
    disrupt_all: bool
    priority: int | None  # None: not set, the pods decide (implicit groups)
    preemption_policy: str | None
    workload: str | None
    template: str | None
    created: str
    uid: str = ""
    generation: int = 0
    problem: str | None = None  # the object itself cannot be used


class Group:
    """A place in the forest. `spec` is None while only children or pods have named it."""

    __slots__ = (
        "_sorted",
        "bad_children",
        "children",
        "completed",
        "composite",
        "counts",
        "ended",
        "gated",
        "key",
        "marked",
        "members",
        "on_nodes",
        "policy",
        "present",
        "problem",
        "ready_children",
        "runs",
        "source",
        "spec",
        "traits",
    )

    def __init__(self, key: GroupKey) -> None:
        self.key = key
        self.composite = key.kind == COMPOSITE
        self.spec: GroupSpec | None = None
        self.source: PodGroup | CompositePodGroup | Workload | None = None
        self.policy = DEFAULT
        self.children: dict[GroupKey, Group] = {}
        self.members: dict[PodKey, Member] = {}
        self.counts = [0] * len(MemberState)  # by state
        self.present = 0  # members that wait or run
        self.on_nodes = 0  # members that are assumed or run
        self.completed = 0  # members that succeeded and still stand for one of the gang, see `complete`
        self.runs: dict[str, int] = {}  # run -> how many of those present are of it
        self.ended: dict[str, int] = {}  # run -> members that succeeded and will not be followed by others
        self.marked = 0  # running members that this product bound as part of their group
        self.gated: dict[PodKey, None] = {}  # pending members with scheduling gates
        self.traits: dict[tuple[str, int, str], int] = {}  # (schedulerName, priority, preemptionPolicy)
        self.ready_children = 0
        self.bad_children = 0
        self.problem: str | None = None
        self._sorted: list[Group] | None = None

    def complete(self) -> None:
        """Count `completed` again, after the present or ended members have changed.

        Ended members of a run with present members count: a minimum is about pods at the same time, so members that an
        earlier run completed say nothing about the next. If no member is left to run, all that succeeded count for the
        tree.
        """
        if not self.present:
            self.completed = self.counts[SUCCEEDED]
        elif self.ended:
            self.completed = sum(count for run, count in self.ended.items() if run in self.runs)
        else:
            self.completed = 0

    @property
    def known(self) -> int:
        """Return the number of members that count for the quorum."""
        return self.present + self.completed

    @property
    def placed(self) -> int:
        """Return the number of members that already count for the minimum."""
        return self.on_nodes + self.completed

    @property
    def members_on_nodes(self) -> int:
        """Return the number of members on nodes, including those that are terminating."""
        return self.on_nodes + self.counts[ENDING]

    @property
    def ready(self) -> bool:
        if self.spec is None:
            return False
        return (self.ready_children if self.composite else self.present + self.completed) >= self.spec.minimum

    @property
    def satisfied(self) -> bool:
        """Return True if the placed members meet the minimum. This visits the whole subtree."""
        if self.spec is None:
            return False
        if not self.composite:
            return self.on_nodes + self.completed >= self.spec.minimum
        return sum(child.satisfied for child in self.children.values()) >= self.spec.minimum

    @property
    def bad(self) -> bool:
        return self.problem is not None or self.bad_children > 0

    @property
    def empty(self) -> bool:
        return self.spec is None and not self.children and not self.members

    def sorted_children(self) -> list[Group]:
        """Return the children by creation time, then name, as KEP-6012 orders siblings."""
        if self._sorted is None:
            self._sorted = sorted(self.children.values(), key=_age)
        return self._sorted

    def resort(self) -> None:
        self._sorted = None

    @property
    def binding(self) -> int:
        """Return the number of members whose bind is not answered yet."""
        return self.counts[ASSUMED]


def _age(group: Group) -> tuple[str, str, str]:
    created = group.spec.created if group.spec is not None else ""
    return (created, group.key.name, group.key.kind)


class Templates(msgspec.Struct, frozen=True):
    """Templates of a Workload by name: the leaf's own text and the name of its parent template."""

    leaves: dict[str, PodGroupTemplate] = msgspec.field(default_factory=dict)
    parents: dict[str, str | None] = msgspec.field(default_factory=dict)
    kinds: dict[str, str] = msgspec.field(default_factory=dict)


def read_templates(workload: Workload) -> Templates:
    found, spec = Templates(), workload.spec
    _add_templates(found, spec.composite_pod_group_templates, spec.pod_group_templates, None)
    return found


def _add_templates(
    found: Templates, composites: object, leaves: list[PodGroupTemplate] | None, parent: str | None
) -> None:
    for leaf in leaves or ():
        found.parents[leaf.name], found.kinds[leaf.name] = parent, POD_GROUP
        found.leaves[leaf.name] = leaf
    assert composites is None or isinstance(composites, list)
    for composite in composites or ():
        found.parents[composite.name], found.kinds[composite.name] = parent, COMPOSITE
        below = composite.composite_pod_group_templates, composite.pod_group_templates
        _add_templates(found, *below, composite.name)


def _policy(policy: SchedulingPolicy | CompositeSchedulingPolicy) -> tuple[bool, int]:
    if isinstance(policy, SchedulingPolicy):
        return (policy.gang is not None, policy.gang.min_count if policy.gang is not None else 1)
    return (policy.gang is not None, policy.gang.min_group_count if policy.gang is not None else 1)


def _topology(constraints: SchedulingConstraints | None) -> str | None:
    return constraints.topology[0].key if constraints is not None and constraints.topology else None


def _device_key(meta: ObjectMeta) -> str | None:
    """Return the topology key of an attribute that the devices of all members must share.

    A topology that the group asks for itself has precedence: a group has only one.
    """
    attribute = device_attribute(meta.annotations)
    return f"{DEVICE_KEY}{attribute}" if attribute else None


def spec_of_object(group: PodGroup | CompositePodGroup) -> GroupSpec:
    spec, meta = group.spec, group.metadata
    parent = spec.parent_composite_pod_group_name
    gang, minimum = _policy(spec.scheduling_policy)
    ref = spec.workload_ref
    return GroupSpec(
        parent=GroupKey(COMPOSITE, meta.namespace, parent) if parent else None,
        gang=gang,
        minimum=minimum,
        topology_key=_topology(spec.scheduling_constraints) or _device_key(meta),
        preferred_key=meta.annotations.get(PREFERRED_TOPOLOGY),
        disrupt_all=spec.disruption_mode is not None and spec.disruption_mode.all is not None,
        priority=spec.priority or 0,
        preemption_policy=spec.preemption_policy or PREEMPT_LOWER,
        workload=ref.workload_name if ref is not None else None,
        template=ref.template_name if ref is not None else None,
        created=meta.creation_timestamp or "",
        uid=meta.uid,
        generation=meta.generation,
        problem=meta.annotations.get(UNUSABLE),
    )


def with_topology_of_pods(spec: GroupSpec, members: Iterable[Member]) -> GroupSpec:
    """Return the spec with the topology that Kueue's annotations of the first pod ask for, if it has none itself."""
    first = next(iter(members), None)
    if first is None or spec.topology_key is not None:
        return spec
    annotations = first.pod.metadata.annotations
    required, preferred = annotations.get(KUEUE_REQUIRED_TOPOLOGY), annotations.get(KUEUE_PREFERRED_TOPOLOGY)
    if not required and not preferred:
        return spec
    return msgspec.structs.replace(spec, topology_key=required or None, preferred_key=spec.preferred_key or preferred)


def _evicted_whole(meta: ObjectMeta) -> bool:
    """Return True if a gang that cannot set a disruption mode is evicted as a whole.

    It is if its annotation asks for that, or, without the annotation, if a controller owns it.
    """
    asked = meta.annotations.get(DISRUPTION)
    return asked == "all" if asked else any(owner.controller for owner in meta.owner_references or ())


def spec_of_template(workload: Workload, template: PodGroupTemplate) -> GroupSpec:
    """Return the spec of an implicit group from the template of its Workload.

    In KEP-4671 v1alpha1 a group has no object of its own.
    """
    meta, mode = workload.metadata, template.disruption_mode
    gang, minimum = _policy(template.scheduling_policy)
    return GroupSpec(
        parent=None,
        gang=gang,
        minimum=minimum,
        topology_key=_topology(template.scheduling_constraints) or _device_key(meta),
        preferred_key=meta.annotations.get(PREFERRED_TOPOLOGY),
        disrupt_all=mode.all is not None if mode is not None else gang and _evicted_whole(meta),
        priority=template.priority,
        preemption_policy=template.preemption_policy,
        workload=meta.name,
        template=template.name,
        created=meta.creation_timestamp or "",
        uid=meta.uid,
        generation=meta.generation,
    )
