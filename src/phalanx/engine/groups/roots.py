"""Which pods wait where: keeps the forest, the roots and the queue in step.

Events only take notes (`saw`, `lost`, `observe`, `pending`, `placed`, `gone`); `settle`, called before roots are
popped, works through what was touched. A gang of a thousand pods that arrives at once is looked at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from phalanx.engine.groups.attempt import Attempt, Failure
from phalanx.engine.groups.commits import Commit, initially_scheduled
from phalanx.engine.groups.conditions import GroupConditions
from phalanx.engine.records import PodRecord
from phalanx.engine.roots import Place, Root
from phalanx.model.groups import (
    COMPOSITE,
    POD_GROUP,
    WORKLOAD,
    Group,
    GroupForest,
    GroupKey,
    PodKey,
    group_of,
    pod_key,
)
from phalanx.model.objects import Pod

if TYPE_CHECKING:
    from phalanx.engine.cycle import Cycle
    from phalanx.engine.engine import Engine

GANG = "GangScheduling"  # the plugin kube-scheduler would name
WAITING = "WaitingForMembers"
INVALID = "Invalid"
ERROR = "SchedulerError"
GATED = "SchedulingGated"


class Groups:
    """GroupRoots of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.cycle: Cycle = engine.cycle
        self.queue = engine.queue
        self.forest = GroupForest(
            lambda name: name in engine.profiles,
            group_preemption_policy=engine.gates("PodGroupPreemptionPolicy"),
        )
        self.conditions = GroupConditions(engine.emit)
        self.waiting_pods: dict[GroupKey, dict[str, PodRecord]] = {}  # leaf -> its pending pods
        self._home: dict[GroupKey, str] = {}  # leaf -> key of the root its pending pods are in
        self._roots: dict[str, Root] = {}
        self._group_of: dict[str, GroupKey | None] = {}  # root key -> root group; None: no root is known yet
        self._dirty: dict[GroupKey, None] = {}  # leaves whose pods may have to move
        self._touched: dict[GroupKey, None] = {}  # groups whose trees have to be judged anew
        self.commits: dict[GroupKey, Commit] = {}  # by root group
        self._attempt = Attempt(self)
        self.preempt: Callable[..., Any] | None = None  # set by the preemption package

    # ---- what happened

    def saw(self, pod: Pod) -> None:
        """Every version of every pod, before the engine makes a record of it."""
        key = pod_key(pod)
        before = self.forest.leaf_of(key)
        if before is None and group_of(pod) is None:
            return
        known = self._engine.pods.records.get(str(key))
        if (
            known is not None
            and known.uid == pod.metadata.uid
            and known.node_name
            and not known.assumed
            and not pod.spec.node_name
        ):
            return  # an unbound version of a bound pod is old news
        old = self._member(before, key)
        heads = self.forest.put_pod(pod)
        leaf = self.forest.leaf_of(key)
        if leaf == before and old == self._member(leaf, key):
            return  # a status update of a running member concerns nobody
        self._note(heads, (leaf, before))

    def _member(self, leaf: GroupKey | None, key: PodKey) -> tuple[Any, ...] | None:
        group = self.forest.group(leaf) if leaf is not None else None
        member = group.members.get(key) if group is not None else None
        return (member.state, member.node, member.pod.metadata.uid) if member is not None else None

    def lost(self, namespace: str, name: str) -> None:
        """A pod object is gone; after the engine has let go of its record."""
        key = PodKey(namespace, name)
        if str(key) in self._engine.pods.records:
            return  # another pod of the same name is there
        leaf = self.forest.leaf_of(key)
        if leaf is not None:
            self._note(self.forest.drop_pod(namespace, name), (leaf,))

    def observe(self, kind: str, old: Any | None, new: Any | None) -> None:
        if kind not in (POD_GROUP, COMPOSITE, WORKLOAD):
            return
        meta = (new if new is not None else old).metadata  # type: ignore[union-attr]
        namespace, name = meta.namespace, meta.name
        forest = self.forest
        if kind == WORKLOAD:
            heads = forest.put_workload(new) if new is not None else forest.drop_workload(namespace, name)
            self._note(heads, (leaf.key for head in heads for leaf in forest.leaves(head)))
            return
        key = GroupKey(kind, namespace, name)
        below = {leaf.key: None for leaf in forest.leaves(key)}
        if new is None:
            heads = (
                forest.drop_pod_group(namespace, name) if kind == POD_GROUP else forest.drop_composite(namespace, name)
            )
            self.conditions.forget(key)
        else:
            heads = forest.put_pod_group(new) if kind == POD_GROUP else forest.put_composite(new)
            self.conditions.seen(key, new)
            if old is not None and old.spec == new.spec and old.metadata.annotations == new.metadata.annotations:
                return  # its status was written, probably by us
        below |= {leaf.key: None for leaf in forest.leaves(key)}
        self._note((*heads, key), below)

    def _note(self, heads: Iterable[GroupKey], leaves: Iterable[GroupKey | None]) -> None:
        for head in heads:
            self._touched[head] = None
        for leaf in leaves:
            if leaf is not None:
                self._dirty[leaf] = None

    # ---- GroupRoots

    def claims(self, record: PodRecord) -> bool:
        return self.forest.leaf_of(PodKey(record.namespace, record.name)) is not None

    def pending(self, record: PodRecord) -> None:
        key = PodKey(record.namespace, record.name)
        leaf = self.forest.leaf_of(key)
        if leaf is None:
            return
        heads = self.forest.forget(key)
        self.waiting_pods.setdefault(leaf, {})[record.key] = record
        root = self._roots.get(self._home.get(leaf, ""))
        if root is not None and record.key in root.records:
            root.records[record.key] = record
        self._answered(leaf, record, failed=True)
        self._note(heads, (leaf,))

    def placed(self, record: PodRecord) -> None:
        key = PodKey(record.namespace, record.name)
        leaf = self._leave(record)
        if leaf is None:
            return
        if record.assumed:
            self.forest.assume(key, record.node_name)
        else:
            self._answered(leaf, record, failed=False)

    def bound(self, record: PodRecord) -> None:
        """The API server acknowledged the Bind."""
        leaf = self.forest.leaf_of(PodKey(record.namespace, record.name))
        if leaf is not None:
            self._answered(leaf, record, failed=False)

    def gone(self, record: PodRecord, *, finished: bool) -> None:
        leaf = self._leave(record)
        if leaf is not None:
            self._answered(leaf, record, failed=False)
            self._note((), (leaf,))

    def _leave(self, record: PodRecord) -> GroupKey | None:
        """The pod waits no more."""
        leaf = self.forest.leaf_of(PodKey(record.namespace, record.name))
        if leaf is None:
            return None
        pods = self.waiting_pods.get(leaf)
        if pods is not None and pods.get(record.key) is not None:
            del pods[record.key]
            if not pods:
                del self.waiting_pods[leaf]
        root = self._roots.get(self._home.get(leaf, ""))
        if root is not None:
            root.records.pop(record.key, None)
            if not root.records and root.place is not Place.ATTEMPT:
                self._drop(root)
        return leaf

    def _drop(self, root: Root) -> None:
        if root.place is not Place.NOWHERE:
            self.queue.remove(root)
        self._roots.pop(root.key, None)
        self._group_of.pop(root.key, None)

    def place_of(self, record: PodRecord) -> Place:
        leaf = self.forest.leaf_of(PodKey(record.namespace, record.name))
        if leaf is None or record.key not in self.waiting_pods.get(leaf, {}):
            return Place.NOWHERE
        if leaf in self._dirty:
            return Place.GATED  # arrived since the last step
        root = self._roots.get(self._home.get(leaf, ""))
        return root.place if root is not None and record.key in root.records else Place.NOWHERE

    # ---- questions

    def root_of(self, key: GroupKey) -> Root | None:
        """The root in which the pending pods of a group, or of those below it, are."""
        target = self.forest.resolve(key).root
        return self._roots.get(root_key(target) if target is not None else f"waiting/{root_key(key)}")

    def failure(self, root: str) -> Failure | None:
        """Why the last attempt of a root failed, by its key."""
        return self._attempt.failures.get(root)

    def under_way(self, root: GroupKey) -> bool:
        """Binds of its members are not all answered yet."""
        return root in self.commits

    @property
    def busy(self) -> bool:
        """Something was touched that `settle` has not looked at."""
        return bool(self._dirty or self._touched)

    def attempt(self, root: Root, cycle: Cycle) -> None:
        key = self._group_of.get(root.key)
        group = self.forest.group(key) if key is not None else None
        if group is None or not root.records:
            self._drop(root)
            return
        self._attempt.run(root, group)
        if not root.records and root.place is Place.ATTEMPT:
            self._drop(root)

    # ---- settling

    def settle(self) -> None:
        if not self.busy:
            return
        dirty, touched = self._dirty, self._touched
        self._dirty, self._touched = {}, {}
        for head in touched:
            for leaf in self.forest.leaves(head):
                dirty[leaf.key] = None
        judged: dict[str, None] = {}
        for leaf_key in dirty:
            old = self._home.get(leaf_key)
            new = self._rehome(leaf_key)
            for key in (old, new):
                if key is not None:
                    judged[key] = None
        for head in touched:
            self._judge_empty(head)
        for key in judged:
            root = self._roots.get(key)
            if root is not None and root.records:
                self.admit(root)
            elif root is not None:
                self._drop(root)

    def _rehome(self, leaf: GroupKey) -> str | None:
        """Move a leaf's pending pods to the root they belong to now."""
        pods = self.waiting_pods.get(leaf)
        resolution = self.forest.resolve(leaf)
        target = resolution.root
        key = root_key(target) if target is not None else f"waiting/{root_key(leaf)}"
        old = self._home.get(leaf)
        if old is not None and old != key:
            root = self._roots.get(old)
            for name in list(root.records) if root is not None else ():
                if root is not None and (pods is None or name in pods):
                    root.records.pop(name)
        if not pods:
            self._home.pop(leaf, None)
            return old
        self._home[leaf] = key
        root = self._roots.get(key)
        if root is None:
            first = min(pods.values(), key=lambda record: (record.created, record.order))
            kind = target.kind if target is not None else leaf.kind
            root = self._roots[key] = Root(kind, key, 0, first.created, first.order)
        self._group_of[key] = target
        root.records.update(pods)
        return key

    def _judge_empty(self, head: GroupKey) -> None:
        """A broken hierarchy is reported even where no pod waits yet."""
        invalid = self.forest.invalid(head)
        if invalid is not None:
            for key in invalid.groups:
                self._say(key, INVALID, invalid.message)

    def admit(self, root: Root) -> None:
        """Active if the tree is complete and in order, else held with the reason."""
        key = self._group_of[root.key]
        if key is None:
            self._wait_for_objects(root)
            return
        forest = self.forest
        group = forest.group(key)
        assert group is not None and group.spec is not None
        root.priority = forest.priority(key)
        if group.placed and not group.composite and group.placed < group.spec.minimum:
            root.asked = min(root.asked, self._created(group, root.asked))  # replacements come before new work
        invalid = forest.invalid(key)
        if invalid is not None:
            self._hold(root, invalid.groups, INVALID, ERROR, invalid.message)
            return
        mismatch = forest.mismatch(key)
        if mismatch is not None:
            leaves = [leaf.key for leaf in forest.leaves(key)]
            self._hold(root, [key, *(leaf for leaf in leaves if leaf != key)], ERROR, ERROR, mismatch)
            return
        if not forest.ready(key):
            self._below_quorum(root, key)
            return
        gated = forest.gated(key)
        if gated:
            names = ", ".join(map(str, gated[:3])) + (f" and {len(gated) - 3} more" if len(gated) > 3 else "")
            self._hold(root, (), "", GATED, f"waiting for scheduling gates of {names}")
            return
        self._engine.pods.admit(root)

    def _created(self, group: Group, otherwise: float) -> float:
        records = [self._engine.pods.records.get(str(name)) for name in group.members]
        return min((record.created for record in records if record is not None), default=otherwise)

    def _wait_for_objects(self, root: Root) -> None:
        leaf = next(leaf for leaf, home in self._home.items() if home == root.key)
        invalid = self.forest.invalid(leaf)
        if invalid is not None:
            self._hold(root, invalid.groups, INVALID, ERROR, invalid.message)
        else:
            self._hold(root, (), "", WAITING, self.forest.resolve(leaf).message)

    def _below_quorum(self, root: Root, key: GroupKey) -> None:
        quorum = self.forest.quorum(key)
        for shortage in quorum.shortages:
            if shortage.group != key:
                self._say(shortage.group, WAITING, f"waiting for members: {shortage}")
        self._say(key, WAITING, quorum.message)
        # The pods' text carries no count: it would change for every pod whenever one more arrives.
        self._hold(root, (), "", WAITING, quorum.message.partition(":")[0])

    def _hold(self, root: Root, groups: Iterable[GroupKey], group_reason: str, pod_reason: str, message: str) -> None:
        self.queue.gate(root, GANG, message)
        for key in groups:
            self._say(key, group_reason, message)
        quiet = pod_reason in (WAITING, GATED)
        for record in root.records.values():
            if record.pod is not None and record.pod.spec.scheduling_gates:
                continue  # its own gate is the reason that matters to it; the API server has written that
            self.cycle.say(record, pod_reason, message, event=not quiet)

    def _say(self, key: GroupKey, reason: str, message: str) -> None:
        group = self.forest.group(key)
        if group is not None:
            self.conditions.say(group, "False", reason, message)

    # ---- commits

    def begin_commit(self, root: GroupKey, groups: list[GroupKey], records: list[PodRecord]) -> None:
        commit = self.commits.setdefault(root, Commit([]))
        commit.groups += [key for key in groups if key not in commit.groups]
        commit.outstanding.update(record.key for record in records)
        if not commit.outstanding:
            self._finish_commit(root, commit)

    def _answered(self, leaf: GroupKey, record: PodRecord, *, failed: bool) -> None:
        root = self.forest.resolve(leaf).root
        commit = self.commits.get(root) if root is not None else None
        if root is None or commit is None or record.key not in commit.outstanding:
            return
        commit.outstanding.discard(record.key)
        commit.failed = commit.failed or failed
        if not commit.outstanding:
            self._finish_commit(root, commit)

    def _finish_commit(self, root: GroupKey, commit: Commit) -> None:
        """The last bind is answered: only what is really there is called scheduled."""
        del self.commits[root]
        for key in commit.groups:
            group = self.forest.group(key)
            if group is not None and group.satisfied:
                self.conditions.say(group, "True", "Scheduled", "")

    def scheduled_before(self, group: Group) -> bool:
        return initially_scheduled(group) or self.conditions.is_true(group.key)


def root_key(key: GroupKey) -> str:
    """ "podgroup/ns/name": what queue, metrics and decisions call a root."""
    return f"{key.kind.lower()}/{key.namespace}/{key.name}"
