"""Invariants that must hold after every step, whatever goes wrong. Each broken one is a `Violation` that names it.

The ledger follows the store's own commits, so it sees every state that any client could have read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.local.store.contract import Change, Key
from phalanx.model import quantity

Json = dict[str, Any]

LEASES = "leases.coordination.k8s.io"
PODS, NODES, GROUPS = "pods", "nodes", "podgroups.scheduling.k8s.io"
COMPOSITES = "compositepodgroups.scheduling.k8s.io"
CLAIMS = "resourceclaims.resource.k8s.io"
RESTLESS = frozenset({LEASES, "events", "events.events.k8s.io"})  # written by the clock, not because something happened


class Violation(AssertionError):
    """A broken invariant: `promise` is one of PROMISES."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(f"{promise}: {what}")
        self.promise, self.what = promise, what

    def __reduce__(self) -> tuple[type[Violation], tuple[str, str]]:
        return Violation, (self.promise, self.what)  # it may come from another process


PROMISES = {
    "no-overcommit": "no node holds more than it has",
    "no-double-allocation": "no device is allocated to two claims",
    "no-partial-gang": "no gang is left bound below its minimum by us",
    "one-leader": "only the holder of the lease binds",
    "durable": "every acknowledged write is there afterwards",
    "order": "revisions only rise, each given once",
    "watch-equals-list": "what watches sent equals what is there",
    "planned-evictions": "nothing is evicted but for something more important, or to undo half a gang",
    "accounted": "every pending pod is in exactly one place, and says why",
    "alive": "no process dies or hangs of a fault",
    "converges": "everything comes to rest when faults stop",
}


@dataclass(slots=True)
class Gang:
    minimum: int
    members: set[Key] = field(default_factory=set)  # bound and alive
    living: set[Key] = field(default_factory=set)  # bound or not
    whole_once: bool = False
    partial_since: float | None = None
    parent: str = ""

    @property
    def whole(self) -> bool:
        return len(self.members) >= self.minimum


@dataclass(slots=True)
class Tree:
    """A composite above its groups: enough of them are complete, or no pod of any of them is bound."""

    minimum: int
    groups: dict[str, Gang] = field(default_factory=dict)
    whole_once: bool = False
    partial_since: float | None = None

    @property
    def whole(self) -> bool:
        return sum(gang.whole for gang in self.groups.values()) >= self.minimum


@dataclass(slots=True)
class Pod:
    node: str
    group: str
    priority: int
    requests: dict[str, int]
    uid: str
    leaving: bool
    over: bool
    started: bool


class Ledger:
    """The committed state, updated change by change. It outlives the API server, as commits do."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.revision = 0
        self.pods: dict[Key, Pod] = {}
        self.room: dict[str, dict[str, int]] = {}
        self.gangs: dict[str, Gang] = {}
        self.trees: dict[str, Tree] = {}
        self.used: dict[str, dict[str, int]] = {}
        self.holder = ""
        self.devices: dict[tuple[str, str, str], Key] = {}  # device -> the claim that has it
        self.claims: dict[Key, list[tuple[str, str, str]]] = {}  # claim -> its devices
        self.newest: dict[Key, int] = {}  # revision of every object that is there
        self.checks = 0
        self.last_change = 0.0

    # -- following the store

    def committed(self, changes: Sequence[Change]) -> None:
        for change in changes:
            self.checks += 1
            if change.revision <= self.revision:
                raise Violation("order", f"revision {change.revision} after {self.revision}")
            self.revision = change.revision
            key = change.entry.key
            if key[0] not in RESTLESS and key[0] != NODES:
                self.last_change = self._now()
            if change.deleted:
                self.newest.pop(key, None)
            else:
                self.newest[key] = change.revision
            resource = key[0]
            if resource == PODS:
                self._pod(key, None if change.deleted else json.loads(change.entry.value))
            elif resource == NODES:
                self._node(key[2], None if change.deleted else json.loads(change.entry.value))
            elif resource == GROUPS:
                self._group(key, None if change.deleted else json.loads(change.entry.value))
            elif resource == COMPOSITES:
                self._composite(key, None if change.deleted else json.loads(change.entry.value))
            elif resource == CLAIMS:
                self._claim(key, None if change.deleted else json.loads(change.entry.value))
            elif resource == LEASES and key[2] == "phalanx-scheduler":
                self.holder = (json.loads(change.entry.value).get("spec") or {}).get("holderIdentity") or ""

    def _claim(self, key: Key, claim: Json | None) -> None:
        allocation = ((claim or {}).get("status") or {}).get("allocation") or {}
        results = (allocation.get("devices") or {}).get("results") or ()
        for device in self.claims.pop(key, ()):
            self.devices.pop(device, None)
        found = [(each["driver"], each["pool"], each["device"]) for each in results]
        for device in found:
            other = self.devices.setdefault(device, key)
            if other != key:
                raise Violation("no-double-allocation", f"{'/'.join(device)} is in {other[2]} and in {key[2]}")
        if found:
            self.claims[key] = found

    def _node(self, name: str, node: Json | None) -> None:
        if node is None:
            self.room.pop(name, None)
        else:
            self.room[name] = {k: _amount(k, v) for k, v in node["status"]["allocatable"].items()}

    def _group(self, key: Key, group: Json | None) -> None:
        name = f"{key[1]}/{key[2]}"
        if group is None:
            gone = self.gangs.pop(name, None)
            if gone is not None and gone.parent in self.trees:
                self.trees[gone.parent].groups.pop(name, None)
            return
        policy = (group["spec"].get("schedulingPolicy") or {}).get("gang")
        if policy is None:
            return
        gang = self.gangs.setdefault(name, Gang(0))
        gang.minimum = policy["minCount"]
        if parent := group["spec"].get("parentCompositePodGroupName"):
            gang.parent = f"{key[1]}/{parent}"
            if gang.parent in self.trees:
                self.trees[gang.parent].groups[name] = gang

    def _composite(self, key: Key, composite: Json | None) -> None:
        name = f"{key[1]}/{key[2]}"
        if composite is None:
            self.trees.pop(name, None)
        elif gang := (composite["spec"].get("schedulingPolicy") or {}).get("gang"):
            self.trees.setdefault(name, Tree(0)).minimum = gang["minGroupCount"]

    def _pod(self, key: Key, body: Json | None) -> None:
        old = self.pods.pop(key, None)
        if old is not None and old.node and not old.over:
            self._take(old, -1)
        if old is not None and old.group in self.gangs:
            self.gangs[old.group].members.discard(key)
            self.gangs[old.group].living.discard(key)
        if body is not None:
            pod = self.pods[key] = _pod_of(key, body)
            if pod.group in self.gangs and not pod.leaving and not pod.over:
                self.gangs[pod.group].living.add(key)
            if pod.node and not pod.over:
                self._take(pod, +1)
                self._check_room(key, pod)
                if pod.group in self.gangs and not pod.leaving:
                    self.gangs[pod.group].members.add(key)
        group = self.pods[key].group if body is not None else old.group if old is not None else ""
        if group in self.gangs:
            self._check_gang(self.gangs[group])

    def _take(self, pod: Pod, sign: int) -> None:
        used = self.used.setdefault(pod.node, {})
        for name, amount in pod.requests.items():
            used[name] = used.get(name, 0) + sign * amount

    def _check_room(self, key: Key, pod: Pod) -> None:
        room = self.room.get(pod.node)
        if room is None:
            return
        for name, amount in self.used[pod.node].items():
            if amount > room.get(name, 0):
                raise Violation(
                    "no-overcommit", f"{key[2]} makes {amount} {name} on {pod.node}, which has {room.get(name, 0)}"
                )

    def _check_gang(self, gang: Gang) -> None:
        bound = len(gang.members)
        gang.whole_once = gang.whole_once or gang.whole
        partial = 0 < bound < gang.minimum and not gang.whole_once
        gang.partial_since = (gang.partial_since or self._now()) if partial else None
        if (tree := self.trees.get(gang.parent)) is not None:
            tree.whole_once = tree.whole_once or tree.whole
            partial = not tree.whole_once and any(group.members for group in tree.groups.values())
            tree.partial_since = (tree.partial_since or self._now()) if partial else None

    # -- asked by the world

    def check_acknowledged(self, revision: int) -> None:
        if revision > self.revision:
            raise Violation("durable", f"revision {revision} was answered, but only {self.revision} is durable")

    def check_durable(self, there: dict[Key, int], revision: int, unheard: Sequence[Change]) -> None:
        """Check a store that was opened again. `there`: its content; `unheard`: commits not yet sent to watches."""
        if revision < self.revision:
            raise Violation("durable", f"revision {self.revision} was committed, the store came back at {revision}")
        self.committed(unheard)
        if there != self.newest:
            wrong = sorted(set(there.items()) ^ set(self.newest.items()))
            raise Violation("durable", f"after a restart {len(wrong)} differences: {wrong[:4]}")

    def partial_gangs(self, longer: float, calm_since: float = 0.0) -> list[str]:
        """Return gangs that were partly bound for longer than that and that the scheduler must complete or release.

        A gang whose user deleted a member during binding keeps the pods that started; while none has started, it must
        be released like any other.
        """
        now = self._now()

        def overdue(since: float | None) -> bool:
            return since is not None and now - max(since, calm_since) > longer

        def started(*gangs: Gang) -> bool:
            return any(self.pods[key].started for gang in gangs for key in gang.members)

        found = [
            f"{name}: {len(gang.members)} of {gang.minimum} are bound, {len(gang.living)} are there"
            for name, gang in self.gangs.items()
            if overdue(gang.partial_since) and (len(gang.living) >= gang.minimum or not started(gang))
        ]
        for name, tree in self.trees.items():
            groups = tree.groups.values()
            possible = sum(len(gang.living) >= gang.minimum for gang in groups) >= tree.minimum
            if overdue(tree.partial_since) and (possible or not started(*groups)):
                bound = ", ".join(f"{len(gang.members)} of {gang.minimum}" for gang in groups)
                found.append(f"the tree {name} of {tree.minimum} groups: {bound} are bound")
        return found

    def check_eviction(self, key: Key, uid: str) -> None:
        """Check an eviction. uid: of the intended pod; a newer pod of the same name must stay."""
        victim = self.pods.get(key)
        if victim is None or victim.leaving or victim.over or (uid and victim.uid != uid):
            return
        gang = self.gangs.get(victim.group)
        tree = self.trees.get(gang.parent) if gang is not None else None
        if gang is not None and (not gang.whole or (tree is not None and not tree.whole)):
            return  # undoing half a gang
        if not any(pod.priority > victim.priority and not pod.node for pod in self.pods.values()):
            raise Violation("planned-evictions", f"{key[2]} is evicted, and nothing more important waits")


def _pod_of(key: Key, body: Json) -> Pod:
    spec, status = body["spec"], body.get("status") or {}
    requests: dict[str, int] = {"pods": 1}
    for container in spec["containers"]:
        for name, text in ((container.get("resources") or {}).get("requests") or {}).items():
            requests[name] = requests.get(name, 0) + _amount(name, text)
    group = (spec.get("schedulingGroup") or {}).get("podGroupName")
    return Pod(
        spec.get("nodeName") or "",
        f"{key[1]}/{group}" if group else "",
        spec.get("priority") or 0,
        requests,
        body["metadata"]["uid"],
        bool(body["metadata"].get("deletionTimestamp")),
        status.get("phase") in ("Succeeded", "Failed"),
        bool(status.get("startTime")) or status.get("phase", "Pending") != "Pending",
    )


def _amount(name: str, text: Any) -> int:
    return quantity.milli(text) if name == "cpu" else quantity.units(text)
