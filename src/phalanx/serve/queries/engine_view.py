"""State of an engine as plain values for the dashboard and `phalanx top`, which use no other access to it.

Only names, numbers and sentences: containers, environment and volumes of pods are not exposed, and Secrets never reach
the engine.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from phalanx.base.well_known import COMPLETION_INDEX, NODE_LOST_TAINTS, POD_INDEX, UNSCHEDULABLE_TAINT
from phalanx.engine.engine import Engine
from phalanx.engine.explain.device_table import device_table
from phalanx.engine.groups.group_state import revision_of, settings_in_words
from phalanx.engine.groups.rank_placement import members_on_nodes, ring_cost_of
from phalanx.engine.reservations.holders import holder_of
from phalanx.model.groups import Group, GroupForest, GroupKey, MemberState, PodKey
from phalanx.model.groups.keys import HOSTNAME, TOPOLOGY_KEYS
from phalanx.model.kinds import Json
from phalanx.model.objects.devices import IMPLICIT_RESOURCE_PREFIX
from phalanx.serve.queries.device_view import DeviceView
from phalanx.serve.queries.queue_view import QueueView, key_of, text_of

# Bits of a node's flags; the page reads them from the snapshot.
FLAGS = {"cordoned": 1, "notReady": 2, "tainted": 4, "leaving": 8, "binding": 16, "promised": 32}
ALONE = "pods"  # prefix of the key of pods without a group
CORDONED, NOT_READY, TAINTED, LEAVING, BINDING, PROMISED = FLAGS.values()
HIDDEN_RESOURCES = ("ephemeral-storage",)
RESOURCE_ORDER = {"cpu": 1, "memory": 2, "pods": 3}  # after devices, which are scarce
MOST_MEMBERS = 2000  # listed pods per group
MOST_RANKED = 512  # members of a group up to which its ring cost is computed
MOST_GROUPS = 1000  # in a text screen, pending ones first

NodeRow = tuple[
    Any, ...
]  # name, [domain per key], [allocatable], [used], flags, highest priority, {group: [pods, amount]}


class Layout(NamedTuple):
    """Meaning of the columns of node rows. A changed layout needs a new snapshot."""

    keys: tuple[str, ...]  # topology keys, outermost first; each is nested in the one before
    resources: tuple[str, ...]


class EngineReader:
    """Reads one engine. `changed` returns the nodes to send again; other values are read each time."""

    def __init__(self, engine: Engine, now: Callable[[], float]) -> None:
        self._engine = engine
        self._now = now
        self._queue = QueueView(engine, now)
        self._devices = DeviceView(engine.indexes.devices)
        self._position = -1
        self._reserved: set[str] = set()
        self._binding: set[str] = set()

    def read_engine(self, engine: Engine) -> None:
        """Read another engine from now on: the scheduler was restarted."""
        self._engine = engine
        self._queue = QueueView(engine, self._now)
        self._devices = DeviceView(engine.indexes.devices)
        self._position = -1
        self._reserved.clear()
        self._binding.clear()

    @property
    def forest(self) -> GroupForest:
        return self._engine.groups.forest

    def waited(self, pod: str) -> float | None:
        """Return the seconds since a pod was first queued."""
        record = self._engine.pods.records.get(pod)
        return max(0.0, self._now() - record.created) if record is not None else None

    def priority_of(self, pod: str) -> int:
        record = self._engine.pods.records.get(pod)
        return record.priority if record is not None else 0

    # ---- nodes

    def layout(self, devices: bool = True) -> Layout:
        """Return the meaning of columns. `devices`: include a column per device class before the resources."""
        classes = self._devices.resources() if devices else ()
        return Layout(tuple(self._topology()), (*classes, *self._resources()))

    def _resources(self) -> list[str]:
        columns = self._engine.columns
        offered: list[bool] = (columns.alloc > 0).sum(axis=1).tolist()
        names = [
            name for rid, name in enumerate(columns.resource_names) if offered[rid] and name not in HIDDEN_RESOURCES
        ]
        return sorted(names, key=lambda name: (RESOURCE_ORDER.get(name, 0), name))

    def _topology(self) -> list[str]:
        """Return nested topology keys of the nodes: well-known ones and those that groups use."""
        labels = [node.metadata.labels for node in self._engine.columns.nodes if node is not None]
        wanted = dict.fromkeys(TOPOLOGY_KEYS)
        for group in self.all_groups():
            if group.spec is not None and group.spec.topology_key and group.spec.topology_key not in wanted:
                wanted[group.spec.topology_key] = None
        wanted.pop(HOSTNAME, None)
        domains = {key: {each[key] for each in labels if key in each} for key in wanted}
        found = sorted((key for key in wanted if len(domains[key]) > 1), key=lambda key: len(domains[key]))
        if not found:
            return [key for key in wanted if domains[key]][-1:]
        kept: list[str] = []
        for key in found:
            if all(_nests(labels, key, outer) for outer in kept):
                kept.append(key)
        return kept

    def changed(self) -> set[str] | None:
        """Return names of nodes changed or deleted since the last call; None: all nodes."""
        columns = self._engine.columns
        promised = {node for node, _ in self._engine.nominations.all()} | self._engine.starts.reserved_nodes
        updates = columns.log.since(self._position) if self._position >= 0 else None
        self._position = columns.log.position
        again = (promised ^ self._reserved) | self._binding
        self._reserved = promised
        rows = self._devices.changed()
        if updates is None or rows is None or any(record is None for _, record, _ in updates):
            self._queue.nodes_changed()
            return None
        return {columns.names[row] for row in (*(row for row, _, _ in updates), *rows)} | again

    def names(self) -> list[str]:
        return list(self._engine.columns.row_of)

    def nodes(self, layout: Layout, names: Iterable[str]) -> dict[str, NodeRow]:
        """Return rows by name; unknown names are omitted."""
        columns, forest = self._engine.columns, self.forest
        known = [name for name in names if name in columns.row_of]
        at = [columns.row_of[name] for name in known]
        classes = [name for name in layout.resources if name.startswith(IMPLICIT_RESOURCE_PREFIX)]
        ids = [columns.resources[name] for name in layout.resources[len(classes) :]]
        alloc = columns.alloc[ids][:, at].T.round().astype(int).tolist()
        used = columns.used[ids][:, at].T.round().astype(int).tolist()
        first = ids[0] if ids and not classes else -1
        texts: dict[GroupKey, str] = {}
        amounts: dict[int, int] = {}  # shape -> amount: equal pods request the same
        found: dict[str, NodeRow] = {}
        for name, row, has, uses in zip(known, at, alloc, used, strict=True):
            node = columns.nodes[row]
            assert node is not None
            labels = node.metadata.labels
            flags = CORDONED if node.spec.unschedulable else 0
            for taint in node.spec.taints or ():
                if taint.key in NODE_LOST_TAINTS:
                    flags |= NOT_READY
                elif taint.effect in ("NoSchedule", "NoExecute") and taint.key != UNSCHEDULABLE_TAINT:
                    flags |= TAINTED
            if name in self._reserved:
                flags |= PROMISED
            # By group, or ALONE/namespace/priority: number of pods, and their amount of the first resource.
            shares: dict[str, list[int]] = {}
            highest: int | None = None
            held: dict[str, int] = {}
            if classes:
                counts = self._devices.cells(row, classes)
                has, uses = [c.usable for c in counts] + has, [c.in_use for c in counts] + uses
                held = self._devices.held(columns.pods[row].values(), classes[0])
            for record in columns.pods[row].values():
                flags |= (LEAVING if record.terminating else 0) | (BINDING if record.assumed else 0)
                leaf = forest.leaf_of(PodKey(record.namespace, record.name)) if forest is not None else None
                if leaf is None:
                    of = f"{ALONE}/{record.namespace}/{record.priority}"
                elif not (of := texts.get(leaf, "")):
                    of = texts[leaf] = text_of(leaf)
                amount = amounts.get(id(record.shape))
                if amount is None:
                    asked = [round(much) for rid, much in record.shape.requests if rid == first]
                    amount = amounts[id(record.shape)] = sum(asked)
                share = shares.setdefault(of, [0, 0])
                share[0] += 1
                share[1] += held.get(record.key, 0) if classes else amount
                highest = record.priority if highest is None or record.priority > highest else highest
            (self._binding.add if flags & BINDING else self._binding.discard)(name)
            found[name] = (name, [labels.get(key, "") for key in layout.keys], has, uses, flags, highest, shares)
        return found

    def node(self, name: str) -> Json | None:
        """Return one node with its pods."""
        columns, forest = self._engine.columns, self.forest
        row = columns.row_of.get(name, -1)
        node = columns.nodes[row] if row >= 0 else None
        if node is None:
            return None
        pods = []
        for record in columns.pods[row].values():
            leaf = forest.leaf_of(PodKey(record.namespace, record.name)) if forest is not None else None
            state = "leaving" if record.terminating else "binding" if record.assumed else "bound"
            requests = {columns.resource_names[rid]: round(amount) for rid, amount in record.shape.requests}
            group = text_of(leaf) if leaf is not None else ""
            pods.append({"namespace": record.namespace, "name": record.name, "group": group, "state": state,
                         "priority": record.priority, "requests": requests})  # fmt: skip
        pods.sort(key=lambda pod: (pod["namespace"], pod["name"]))
        reserved = list(
            dict.fromkeys(str(holder_of(each)) for at, each in self._engine.nominations.all() if at == name)
        )
        taints = [f"{t.key}{f'={t.value}' if t.value else ''}:{t.effect}" for t in node.spec.taints or ()]
        return {"name": name, "labels": node.metadata.labels, "taints": taints, "pods": pods, "reserved": reserved,
                "devices": self._devices.on(row)}  # fmt: skip

    # ---- groups

    def all_groups(self) -> list[Group]:
        """Return every group that exists as an object or as part of a Workload."""
        return self.forest.groups()

    def groups(self) -> dict[str, Json]:
        """Return every group, by key text. The parent is "" if an ancestor is missing, or in a cycle."""
        found: dict[str, Json] = {}
        groups = self.all_groups()
        revisions: dict[tuple[str, str], set[str]] = {}  # of a Workload: several while it rolls out
        for group in groups:
            if (revision := revision_of(group)) and group.spec is not None and group.spec.workload:
                revisions.setdefault((group.key.namespace, group.spec.workload), set()).add(revision)
        for group in groups:
            spec = group.spec
            assert spec is not None
            rolls = len(revisions.get((group.key.namespace, spec.workload or ""), ())) > 1
            state = self._engine.groups.members.health.state(group)
            found[text_of(group.key)] = {
                "parent": text_of(spec.parent) if spec.parent is not None and self.forest.root_of(group.key) else "",
                "workload": spec.workload or "",
                "gang": spec.gang,
                "min": spec.minimum,
                "known": group.ready_children if group.composite else group.known,
                "placed": state.placed if group.composite else group.placed,
                "pending": group.counts[MemberState.PENDING],
                "done": group.counts[MemberState.SUCCEEDED],
                "topology": spec.topology_key or "",
                "priority": spec.priority,
                "reason": str(state.phase),
                "pods": [state.placed_pods, state.pods],
                "settings": settings_in_words(group),
                "revision": revision_of(group) if rolls else "",
                "owner": self._queue.owner(group),
            }
            if not group.composite and 1 < group.placed <= MOST_RANKED:
                columns = self._engine.columns
                members = [(record, record.row) for record in members_on_nodes(columns, group)]
                ring = ring_cost_of(columns, members, group.policy)
                if ring is not None:
                    found[text_of(group.key)]["ringCost"] = ring
        return found

    def members(self, text: str) -> list[Json] | None:
        """Return the pods below a group in rank order; None if there is no such group."""
        forest = self.forest
        key = key_of(text)
        if forest is None or key is None or forest.named(key) is None:
            return None
        found = []
        for leaf in forest.leaves(key):
            for pod, member in leaf.members.items():
                labels = member.pod.metadata.labels | member.pod.metadata.annotations
                found.append((_rank(labels, pod.name), pod.name, text_of(leaf.key), member))
        found.sort(key=lambda entry: (entry[2], entry[0], _natural(entry[1])))
        counted: dict[str, int] = {}
        rows = []
        for _, name, of, member in found[:MOST_MEMBERS]:
            rank = counted[of] = counted.get(of, -1) + 1
            rows.append({"name": name, "group": of, "rank": rank, "node": member.node,
                         "state": member.state.name.lower()})  # fmt: skip
        return rows

    def free_devices(self, text: str) -> Json:
        """Return devices by class and domain, as in `top`, for the classes that a unit's pods request."""
        names = {f"{pod.metadata.namespace}/{pod.metadata.name}" for _, pod in self.waiting_pods(text)}
        records = (self._engine.pods.records.get(name) for name in sorted(names))
        keys = self.layout(devices=False).keys
        return {"keys": keys, "rows": self._devices.free(keys, {r.shape for r in records if r is not None})}

    def shape(self, text: str) -> Json:
        """Return what one pod of a group requests; {} if no pod is known."""
        forest, key = self.forest, key_of(text)
        if forest is None or key is None:
            return {}
        for leaf in forest.leaves(key):
            for pod in leaf.members:
                record = self._engine.pods.records.get(str(pod))
                if record is not None:
                    names = self._engine.columns.resource_names
                    requests = {names[rid]: round(amount) for rid, amount in record.shape.requests}
                    return requests | self._devices.asked(record.shape)
        return {}

    def health(self, text: str) -> str:
        """Return what the condition Healthy says of the present state of a group; "" if there is no such group."""
        key, health = key_of(text), self._engine.groups.members.health
        group = self.forest.group(key) if key is not None else None
        return health.message(group, health.state(group)) if group is not None else ""

    def conditions(self, text: str) -> list[Json]:
        """Return the conditions of its object; [] for a group without an object (implicit groups of KEP-4671)."""
        forest, key = self.forest, key_of(text)
        group = forest.group(key) if forest is not None and key is not None else None
        status = getattr(group.source, "status", None) if group is not None else None
        return [{"type": each.type, "status": each.status, "reason": each.reason, "message": each.message}
                for each in (status.conditions if status is not None else None) or ()]  # fmt: skip

    # ---- queue

    def waiting(self) -> Json:
        """Return the number of pending units, by queue and waiting time."""
        return self._queue.waiting()

    def queue(self, namespace: str = "") -> Json:
        """Return pending units in queue order, up to a limit. namespace: list only its units; counts cover all."""
        return self._queue.units(namespace)

    def headline(self, text: str) -> str:
        """Return why the unit of a group is pending, as a sentence; "" if it is not pending."""
        return self._queue.headline(text)

    # ---- sums

    def sums(self, layout: Layout) -> Json:
        """Return the used share of the cluster, and the share of free capacity on used nodes."""
        columns = self._engine.columns
        alive = columns.alive
        use: dict[str, float] = {}
        fragmentation: dict[str, float] = {}
        busy = columns.used[columns.resources["pods"]] > 0
        for name in layout.resources:
            if name.startswith(IMPLICIT_RESOURCE_PREFIX):
                use[name], fragmentation[name] = self._devices.shares(name)
                continue
            rid = columns.resources[name]
            alloc, used = columns.alloc[rid][alive], columns.used[rid][alive]
            total, free = float(alloc.sum()), (alloc - used).clip(min=0)
            use[name] = round(float(used.sum()) / total, 4) if total else 0.0
            room = float(free.sum())
            fragmentation[name] = round(float(free[busy[alive]].sum()) / room, 4) if room else 0.0
        return {"use": use, "fragmentation": fragmentation}

    def fragmentation(self) -> dict[tuple[str, str], float]:
        """Return the share of free capacity in domains that hold a pod, by (level, resource).

        Levels are the topology keys, outermost first, and "node".
        """
        layout, columns = self.layout(devices=False), self._engine.columns
        rows = np.fromiter(columns.row_of.values(), dtype=np.intp, count=len(columns.row_of))
        if not len(rows):
            return {}
        nodes = [columns.nodes[row] for row in rows.tolist()]
        busy = columns.used[columns.resources["pods"]][rows] > 0  # (N,)
        holds: dict[str, Any] = {"node": busy}
        for key in layout.keys:
            numbers: dict[str, int] = {}
            names = (node.metadata.labels.get(key, "") if node is not None else "" for node in nodes)
            domain = np.fromiter((numbers.setdefault(name, len(numbers)) for name in names), np.intp, len(rows))
            holds[key] = (np.bincount(domain, weights=busy, minlength=len(numbers)) > 0)[domain]
        found: dict[tuple[str, str], float] = {}
        for name in layout.resources:
            rid = columns.resources[name]
            free = (columns.alloc[rid][rows] - columns.used[rid][rows]).clip(min=0)  # (N,) in the resource's unit
            total = float(free.sum())
            for level, inside in holds.items():
                found[level, name] = float(free[inside].sum()) / total if total else 0.0
        return found

    def domains(self, layout: Layout) -> list[Json]:
        """Return capacity and free capacity by domain of the innermost topology key; without a key, by node."""
        columns = self._engine.columns
        ids = [columns.resources[name] for name in layout.resources]
        rows: dict[tuple[str, ...], list[int]] = {}
        for row in columns.row_of.values():
            node = columns.nodes[row]
            assert node is not None
            at = tuple(node.metadata.labels.get(key, "") for key in layout.keys) or (node.metadata.name,)
            rows.setdefault(at, []).append(row)
        busy = columns.used[columns.resources["pods"]] > 0
        alloc = columns.alloc[ids]  # (R, N) in the unit of each resource
        room = (alloc - columns.used[ids]).clip(min=0)
        found = []
        for at, inside in sorted(rows.items(), key=lambda entry: [_natural(part) for part in entry[0]]):
            usable = [row for row in inside if not self._closed(row)]
            has = alloc[:, inside].sum(axis=1).round().astype(int).tolist()
            free = room[:, usable].sum(axis=1).round().astype(int)
            found.append({"path": list(at), "nodes": len(inside), "closed": len(inside) - len(usable),
                          "empty": int((~busy[usable]).sum()), "has": has, "free": free.tolist()})  # fmt: skip
        return found

    def inside(self, path: Sequence[str]) -> Json:
        """Return the nodes of one domain, given by outermost name first; without topology keys, one node."""
        layout, columns = self.layout(devices=False), self._engine.columns
        names = []
        for name, row in columns.row_of.items():
            node = columns.nodes[row]
            assert node is not None
            if (tuple(node.metadata.labels.get(key, "") for key in layout.keys) or (name,)) == tuple(path):
                names.append(name)
        rows = self.nodes(layout, sorted(names, key=_natural))
        return {"resources": layout.resources, "nodes": list(rows.values())}

    def _closed(self, row: int) -> bool:
        """Return True if the node is cordoned or not ready, so that its free room is unusable."""
        node = self._engine.columns.nodes[row]
        assert node is not None
        return bool(node.spec.unschedulable) or any(taint.key in NODE_LOST_TAINTS for taint in node.spec.taints or ())

    def state(self, namespace: str = "") -> Json:
        """Return the data of one text screen: queue, groups, and free capacity by domain.

        namespace: list only its groups; counts cover all.
        """
        layout = self.layout(devices=False)
        groups = self.groups()
        listed = (item for item in groups.items() if not namespace or item[0].split("/", 2)[1] == namespace)
        first = heapq.nsmallest(MOST_GROUPS, listed, key=lambda entry: (not entry[1]["pending"], entry[0]))
        return {
            "now": round(self._now(), 1),
            "nodes": len(self._engine.columns.row_of),
            "keys": layout.keys,
            "resources": layout.resources,
            "use": self.sums(layout)["use"],
            "queue": self.queue(namespace),
            "groups": dict(first),
            "groupCount": len(groups),
            "domains": self.domains(layout),
            "devices": msgspec.to_builtins(device_table(self._engine.indexes.devices, layout.keys)),
        }

    # ---- where victims are

    def nodes_of(self, unit: str) -> dict[str, int]:
        """Return the nodes of an eviction unit ("pod ns/name", "PodGroup ns/name"), with pod counts."""
        kind, _, key = unit.partition(" ")
        found: dict[str, int] = {}
        if kind == "pod":
            record = self._engine.pods.records.get(key)
            if record is not None and record.node_name:
                found[record.node_name] = 1
            return found
        for member in self.members(f"{kind.lower()}/{key}") or ():
            if member["node"] and member["state"] in ("running", "assumed", "ending"):
                found[member["node"]] = found.get(member["node"], 0) + 1
        return found

    def group_of(self, unit: str) -> str:
        """Return the group of an eviction unit; "" if the unit is a group, or in none."""
        kind, _, key = unit.partition(" ")
        if kind != "pod" or self.forest is None:
            return ""
        leaf = self.forest.leaf_of(PodKey(*key.split("/", 1)))
        return text_of(leaf) if leaf is not None else ""

    def waiting_pods(self, text: str) -> list[tuple[GroupKey | None, Any]]:
        """Return the pending pods of a unit as API objects, with their group."""
        forest, key = self.forest, key_of(text)
        if key is None:
            record = self._engine.pods.records.get(text.partition("/")[2])
            return [(None, record.pod)] if record is not None and record.pod is not None else []
        if forest is None or forest.named(key) is None:
            return []
        return [(leaf.key, member.pod) for leaf in forest.leaves(key) for member in leaf.members.values()]

    def sources(self, text: str) -> list[tuple[GroupKey, Any]]:
        """Return the API objects of a group tree, parents first."""
        forest, key = self.forest, key_of(text)
        if forest is None or key is None:
            return []
        return [(group.key, group.source) for group in forest.tree(key) if group.source is not None]


def _nests(labels: Sequence[Mapping[str, str]], inner: str, outer: str) -> bool:
    """Return True if every domain of `inner` is in one domain of `outer`."""
    above: dict[str, str] = {}
    return all(
        above.setdefault(each[inner], each.get(outer, "")) == each.get(outer, "") for each in labels if inner in each
    )


_RANKS = (
    COMPLETION_INDEX,
    "leaderworkerset.sigs.k8s.io/worker-index",
    POD_INDEX,
)


def _rank(labels: Mapping[str, str], name: str) -> int:
    for key in _RANKS:
        value = labels.get(key, "")
        if value.isdigit():
            return int(value)
    tail = name.rpartition("-")[2]
    return int(tail) if tail.isdigit() and len(tail) < 10 else 1 << 30


def _natural(name: str) -> tuple[int, str]:
    return (len(name), name)
