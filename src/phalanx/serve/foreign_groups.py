"""Translate PodGroups of other schedulers for the engine, and write their status (`--dialects`).

A foreign PodGroup is translated while a pod with our schedulerName names it. Pods and PodGroups of other schedulers are
not changed. Pods get their `schedulingGroup` only inside the engine.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec

from phalanx.base.client import Client, Resource
from phalanx.base.clock import Clock, rfc3339
from phalanx.base.errors import ApiProblem, NotFound
from phalanx.base.informer import ObjectChange
from phalanx.base.retry import retrying
from phalanx.engine import decisions as d
from phalanx.engine import events
from phalanx.engine.groups.conditions import TYPE_OF
from phalanx.kube.dialects import DIALECTS, Dialect, ForeignGroup, GroupProgress, Translation
from phalanx.kube.dialects.contract import InvalidGroup, unusable
from phalanx.kube.dialects.hypernodes import RESOURCE as HYPERNODES
from phalanx.kube.dialects.hypernodes import HyperNode, labels
from phalanx.kube.recorder import ObjectRef, Recorder
from phalanx.model import objects
from phalanx.model.groups.keys import TRANSLATED_FROM
from phalanx.model.objects.groups import CompositePodGroup, PodGroup
from phalanx.model.objects.pod import PodSchedulingGroup

log = logging.getLogger(__name__)

STATUS_DELAY = 0.2  # seconds in which changes of one status are combined


class GroupName(NamedTuple):
    dialect: str
    namespace: str
    name: str


class UsedDialects(NamedTuple):
    names: Sequence[str]  # other schedulers whose PodGroups are used
    profiles: Collection[str]  # scheduler names of the pods that use them: ours


class _State(msgspec.Struct):
    """One foreign PodGroup."""

    object: ForeignGroup | None = None
    translation: Translation | None = None
    sent: dict[tuple[str, str], PodGroup | CompositePodGroup] = {}  # (kind, name) -> group last sent to the engine
    pods: dict[str, str] = {}  # our pods by name -> subgroup
    reason: str = ""
    message: str = ""
    since: str = ""
    written: dict[str, Any] | None = None
    reported: tuple[str, ...] = ()


class ForeignGroups:
    def __init__(
        self,
        dialects: UsedDialects,
        client: Client,
        clock: Clock,
        rng: random.Random,
        recorder: Recorder,
        report: Callable[[events.Outcome], None],
    ) -> None:
        """report: called with outcomes of decisions about foreign groups."""
        self.dialects = [DIALECTS[name] for name in dialects.names]
        self._client, self._clock, self._rng, self._recorder = client, clock, rng, recorder
        self._profiles, self._report = frozenset(dialects.profiles), report
        self._groups: dict[GroupName, _State] = {}
        self._uids: dict[str, GroupName] = {}  # uid of a translated group -> foreign group
        self._pods: dict[tuple[str, str], tuple[GroupName, objects.Pod]] = {}
        self._native: set[tuple[str, str]] = set()  # native PodGroups, which have precedence
        self._hypernodes: dict[str, HyperNode] = {}
        self._nodes: dict[str, objects.Node] = {}
        self._tiers: dict[str, dict[str, str]] = {}
        self._whole: set[str] = set()  # dialects whose PodGroups have no subresource `status`
        self._dirty: set[GroupName] = set()
        self._wake = asyncio.Event()

    @property
    def resources(self) -> Iterator[tuple[Resource, type[Any], Callable[[ObjectChange[Any]], list[events.Event]]]]:
        """Yield what to watch besides the kinds of Kubernetes."""
        for dialect in self.dialects:
            yield dialect.resource, ForeignGroup, partial(self._group_changed, dialect)
            if dialect.name == "volcano":
                yield HYPERNODES, HyperNode, self._hypernode_changed

    # -- objects for the engine

    def translate(self, kind: str, change: ObjectChange[Any]) -> list[events.Event] | None:
        """Return the events for a changed Kubernetes object; None: not translated."""
        if kind == "Pod":
            return self._pod_changed(change)
        if kind == "Node" and any(dialect.name == "volcano" for dialect in self.dialects):
            return self._node_changed(change)
        if kind == "PodGroup":
            key = (change.namespace, change.name)
            self._native.add(key) if change.object is not None else self._native.discard(key)
        return None

    def _pod_changed(self, change: ObjectChange[objects.Pod]) -> list[events.Event] | None:
        key, pod = (change.namespace, change.name), change.object
        found = self._group_of(pod) if pod is not None else None
        before = self._pods.pop(key, None)
        made: list[events.Event] = []
        if before is not None and (found is None or before[0] != found[0]):
            self._groups[before[0]].pods.pop(change.name, None)
            made = [events.Gone("Pod", change.name, change.namespace), *self._refresh(before[0])]
            self._note(before[0])
        if pod is None:
            return made or None
        if found is None:
            return [*made, events.PodChanged(pod)]
        name, subgroup = found
        state = self._groups.setdefault(name, _State())
        self._pods[key] = (name, pod)
        state.pods[change.name] = subgroup
        if before is None:
            made += self._refresh(name)
        self._note(name)
        return [*made, events.PodChanged(self._translated(pod, state, subgroup))]

    def _group_of(self, pod: objects.Pod) -> tuple[GroupName, str] | None:
        spec = pod.spec
        if (
            spec.scheduler_name not in self._profiles
            or spec.scheduling_group is not None
            or spec.workload_ref is not None
        ):
            return None
        for dialect in self.dialects:
            if found := dialect.group_of(pod.metadata.labels, pod.metadata.annotations):
                return GroupName(dialect.name, pod.metadata.namespace, found[0]), found[1]
        return None

    def _translated(self, pod: objects.Pod, state: _State, subgroup: str) -> objects.Pod:
        name = self._pods[pod.metadata.namespace, pod.metadata.name][0].name
        leaves = state.translation.leaves if state.translation is not None else {"": name}
        group = PodSchedulingGroup(leaves.get(subgroup, leaves[""]))
        return msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, scheduling_group=group))

    def _group_changed(self, dialect: Dialect, change: ObjectChange[ForeignGroup]) -> list[events.Event]:
        name = GroupName(dialect.name, change.namespace, change.name)
        if change.object is None and name not in self._groups:
            return []
        self._groups.setdefault(name, _State()).object = change.object
        return self._refresh(name)

    def _refresh(self, name: GroupName) -> list[events.Event]:
        """Update the engine's groups from a foreign PodGroup and its pods."""
        state = self._groups[name]
        before = state.translation
        state.translation = self._translation(name, state) if state.pods else None
        wanted: dict[tuple[str, str], PodGroup | CompositePodGroup] = {}
        if state.translation is not None:
            priority = min(self._pods[name.namespace, pod][1].spec.priority or 0 for pod in state.pods)
            resource = DIALECTS[name.dialect].resource
            origin = {TRANSLATED_FROM: f"{resource.plural}.{resource.group}/{name.name}"}
            for group in state.translation.groups:
                spec: Any = msgspec.structs.replace(group.spec, priority=priority)
                meta: Any = group.metadata
                meta = msgspec.structs.replace(meta, annotations=meta.annotations | origin)
                made = msgspec.structs.replace(group, metadata=meta, spec=spec)
                wanted[type(made).__name__, made.metadata.name] = made
        found: list[events.Event] = []
        for kind, gone in [key for key in state.sent if key not in wanted]:
            self._uids.pop(state.sent[kind, gone].metadata.uid, None)
            found.append(events.Gone(kind, gone, name.namespace))
        for key, made in wanted.items():
            self._uids[made.metadata.uid] = name
            if state.sent.get(key) != made:
                changed: Any = events.CHANGED_BY_KIND[key[0]]
                found.append(changed(made))
        state.sent = wanted
        if (before.leaves if before else None) != (state.translation.leaves if state.translation else None):
            for pod, subgroup in state.pods.items():  # the group of a pod cannot change: delete and add the pod
                found.append(events.Gone("Pod", pod, name.namespace))
                found.append(events.PodChanged(self._translated(self._pods[name.namespace, pod][1], state, subgroup)))
        if not state.pods and state.object is None:
            del self._groups[name]
        return found

    def _translation(self, name: GroupName, state: _State) -> Translation | None:
        if state.object is None:
            return None
        problems: tuple[str, ...] = ()
        translation = None
        if (name.namespace, name.name) in self._native:
            problems = (f"PodGroup {name.name} of scheduling.k8s.io exists and is used instead; delete one of the two",)
        else:
            try:
                translation = DIALECTS[name.dialect].translate(state.object)
                pods = (self._pods[name.namespace, pod][1] for pod in state.pods)
                problems = tuple(translation.ignored_with({pod.spec.priority_class_name for pod in pods}))
            except InvalidGroup as error:
                state.reported = ()
                return unusable(state.object, name.dialect, str(error))
        if problems != state.reported:
            state.reported = problems
            for problem in problems:
                reason = "FieldIgnored" if translation is not None else "Invalid"
                self._recorder.record(self._reference(name, state), "Warning", reason, "Translating", problem)
                log.warning("%s PodGroup %s/%s: %s", name.dialect, name.namespace, name.name, problem)
        return translation

    def _reference(self, name: GroupName, state: _State) -> ObjectRef:
        resource = DIALECTS[name.dialect].resource
        uid = state.object.metadata.uid if state.object is not None else ""
        return ObjectRef(resource.api_version, resource.kind, name.namespace, name.name, uid)

    # -- HyperNodes

    def _node_changed(self, change: ObjectChange[objects.Node]) -> list[events.Event] | None:
        if change.object is None:
            self._nodes.pop(change.name, None)
            self._tiers.pop(change.name, None)
            return None
        known = self._nodes.get(change.name)
        self._nodes[change.name] = change.object
        if self._hypernodes and (known is None or known.metadata.labels != change.object.metadata.labels):
            of_node = labels(self._hypernodes, {change.name: change.object.metadata.labels})
            self._tiers[change.name] = of_node[change.name]
        return [events.NodeChanged(self._labelled(change.object))]

    def _hypernode_changed(self, change: ObjectChange[HyperNode]) -> list[events.Event]:
        if change.object is None:
            self._hypernodes.pop(change.name, None)
        else:
            self._hypernodes[change.name] = change.object
        tiers = labels(self._hypernodes, {name: node.metadata.labels for name, node in self._nodes.items()})
        different = [name for name in self._nodes if tiers.get(name, {}) != self._tiers.get(name, {})]
        self._tiers = tiers
        return [events.NodeChanged(self._labelled(self._nodes[name])) for name in different]

    def _labelled(self, node: objects.Node) -> objects.Node:
        extra = self._tiers.get(node.metadata.name)
        if not extra:
            return node
        meta = msgspec.structs.replace(node.metadata, labels={**node.metadata.labels, **extra})
        return msgspec.structs.replace(node, metadata=meta)

    # -- decisions of the engine

    def take(self, decisions: list[d.Decision]) -> list[d.Decision]:
        """Handle decisions about foreign groups; return the other decisions."""
        return [decision for decision in decisions if not self._taken(decision)]

    def _taken(self, decision: d.Decision) -> bool:
        if not isinstance(decision, d.SetGroupCondition | d.RecordEvent):
            return False
        name = self._uids.get(decision.uid)
        if name is None or decision.kind == "Pod":
            return False
        state = self._groups[name]
        if isinstance(decision, d.RecordEvent):
            self._recorder.record(
                self._reference(name, state), decision.type, decision.reason, decision.action, decision.message
            )
        elif decision.type in TYPE_OF.values() and decision.name == name.name:
            state.reason = decision.reason if decision.status == "False" else ""
            state.message, state.since = decision.message, rfc3339(self._clock.now())
            self._note(name)
        self._report(events.Outcome(decision.id))
        return True

    # -- status

    def _note(self, name: GroupName) -> None:
        self._dirty.add(name)
        self._wake.set()

    def progress(self, name: GroupName) -> GroupProgress:
        state = self._groups[name]
        counts = dict.fromkeys(("pending", "bound", "running", "succeeded", "failed"), 0)
        for pod_name in state.pods:
            pod = self._pods[name.namespace, pod_name][1]
            phase = pod.status.phase.lower()
            counts[
                phase if phase in ("running", "succeeded", "failed") else "bound" if pod.spec.node_name else "pending"
            ] += 1
        minimum = state.translation.minimum if state.translation is not None else 0
        return GroupProgress(minimum, **counts, reason=state.reason, message=state.message, since=state.since)

    async def run(self) -> None:
        """Write the status of foreign PodGroups whenever it changes."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(STATUS_DELAY)
            self._wake.clear()
            names, self._dirty = sorted(self._dirty), set()
            for name in names:
                await self._write(name)

    async def _write(self, name: GroupName) -> None:
        """Write the status of another scheduler's group if it changed."""
        state = self._groups.get(name)
        if state is None or state.object is None or state.translation is None:
            return
        if not state.since:
            state.since = rfc3339(self._clock.now())
        dialect, status = DIALECTS[name.dialect], DIALECTS[name.dialect].status(self.progress(name))
        if status == state.written:
            return
        body = {"metadata": {"uid": state.object.metadata.uid}, "status": status}

        async def patch(path: str) -> bytes:
            return await self._client.patch(dialect.resource, name.name, body, name.namespace, subresource=path)

        for path in ("",) if name.dialect in self._whole else dialect.status_paths:
            try:
                await retrying(partial(patch, path), self._rng)
            except NotFound:
                continue  # deleted, or a definition without the subresource
            except ApiProblem as error:
                log.warning("status of %s PodGroup %s/%s: %s", name.dialect, name.namespace, name.name, error)
                return
            state.written = status
            if not path:
                self._whole.add(name.dialect)
            return
