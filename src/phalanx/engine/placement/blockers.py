"""Name what rules out every node for a pod: claims, labels, requests larger than any node, taints, cordons.

Filters count nodes per reason. These sentences name the label, the amount or the taint, and say when waiting cannot
help. Events, `why`, `whatif`, `top` and the dashboard take them from here, in the same order. Only reads the columns
and the storage and device objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple, Protocol

import numpy as np

from phalanx.base.well_known import NODE_LOST_TAINTS, UNSCHEDULABLE_TAINT
from phalanx.engine.devices.facts import device_facts
from phalanx.engine.devices.state import DeviceState
from phalanx.engine.placement.outcome import amount_word, domain_phrase, domain_word, plural
from phalanx.engine.placement.plain import of_rules
from phalanx.engine.placement.rule_words import (
    MOST_NAMED,
    claim_facts,
    few,
    missing_topology,
    required_terms,
    rules_beyond_resources,
    taint_text,
    terms,
    too_large,
    volume_facts,
)
from phalanx.engine.state.columns import PODS, Bools, Columns
from phalanx.engine.state.node_terms import by_label, matching, selected
from phalanx.engine.state.objects import Objects
from phalanx.engine.state.pod_rules import ANTI, terms_of_shape
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups import GroupForest, GroupKey
from phalanx.model.objects.pod import NodeSelector
from phalanx.model.tolerations import CORDON, tolerated, untolerated

MOST_BLOCKERS = 6
MOST_VALUES = 20  # of a label that are sorted to name the first of them


class Blocker(NamedTuple):
    code: str  # for programs, as in PendingReason
    text: str


class LeafDemand(NamedTuple):
    """Pods of one group without child groups, or a single pod."""

    shapes: Mapping[Shape, int]  # number of pods that have no node
    minimum: int = 0  # number of pods that must run at once


def leaf_demands(forest: GroupForest, records: Iterable[PodRecord]) -> list[LeafDemand]:
    """Return what pods without a node ask for, by the group that they are members of."""
    shapes: dict[GroupKey | None, Counter[Shape]] = {}
    for record in records:
        leaf = forest.leaf_of_pod(record.namespace, record.name)
        shapes.setdefault(leaf, Counter())[record.shape] += 1
    groups = [(forest.group(leaf) if leaf is not None else None, found) for leaf, found in shapes.items()]
    return [
        LeafDemand(found, group.spec.minimum if group is not None and group.spec is not None else 0)
        for group, found in groups
    ]


def rules_sentence(forest: GroupForest, records: Iterable[PodRecord]) -> str:
    """Return the plain sentence for a group with room by resources, but no placement that follows its pods' rules."""
    leaves = leaf_demands(forest, records)
    minimum = leaves[0].minimum if len(leaves) == 1 else 0
    return of_rules(minimum, rules_beyond_resources(shape for leaf in leaves for shape in leaf.shapes))


class ClusterTables(Protocol):
    """The part of the cluster state that blockers are about."""

    @property
    def columns(self) -> Columns: ...
    @property
    def objects(self) -> Objects: ...
    @property
    def devices(self) -> DeviceState | None: ...


def blockers_of(state: ClusterTables, leaves: Iterable[LeafDemand]) -> list[Blocker]:
    """Return the facts that rule out every node for one of the pods, or the whole cluster for the minimum of a group.

    Claims come first, then facts about nodes; without repeats.
    """
    found: dict[Blocker, None] = {}
    leaves = list(leaves)
    shapes = list(dict.fromkeys(shape for leaf in leaves for shape in leaf.shapes))
    for shape in shapes:
        found |= dict.fromkeys(object_blockers(state, shape))
    for shape in shapes:
        found |= dict.fromkeys(node_blockers(state.columns, shape))
    if not found:
        for leaf in leaves:
            found |= dict.fromkeys(total_blockers(state.columns, leaf))
    return list(found)[:MOST_BLOCKERS]


def blocker_texts(state: ClusterTables, forest: GroupForest, records: Iterable[PodRecord]) -> list[str]:
    """Return the facts that rule out every node for one of these pods, or the whole cluster for their group."""
    return [each.text for each in blockers_of(state, leaf_demands(forest, records))]


def object_blockers(state: ClusterTables, shape: Shape) -> Iterator[Blocker]:
    """Yield the volumes and device classes that are missing, and claims that the published devices can never serve."""
    yield from (Blocker("VolumeMissing", text) for text in volume_facts(state.objects, shape))
    yield from (Blocker("ClassMissing", text) for text in claim_facts(state.objects, shape))
    if state.devices is not None and shape.claims:
        yield from (Blocker("NeverFits", text) for text in device_facts(state.devices, shape))


def total_blockers(columns: Columns, leaf: LeafDemand) -> Iterator[Blocker]:
    """Yield a sentence for each resource of which all nodes together have less than the minimum of a group requests.

    Groups with pods of several shapes are left out: which of them are the minimum is not known.
    """
    if len(leaf.shapes) != 1 or leaf.minimum < 2 or sum(leaf.shapes.values()) < leaf.minimum:
        return
    shape = next(iter(leaf.shapes))
    yield from _one_per_domain(columns, shape, leaf.minimum)
    totals = [(rid, amount * leaf.minimum) for rid, amount in shape.requests if rid != PODS]
    if all(amount <= float(columns.alloc[rid].sum()) for rid, amount in totals):
        return  # selectors and affinity only lower the sum: nodes are compared for groups that exceed it
    rows = _matching(columns, shape)
    nodes = plural(int(rows.sum()), "node" if rows.sum() == columns.count else "matching node")
    for rid, amount in totals:
        there = float(columns.alloc[rid, : columns.n][rows].sum())
        if amount > there > 0:
            name = columns.resource_names[rid]
            text = (
                f"{plural(leaf.minimum, 'pod')} ask for {amount_word(name, amount)} {name}; the {nodes} "
                f"have {amount_word(name, there)}: this can never fit on the nodes there are"
            )
            yield Blocker("NeverFits", text)


def _one_per_domain(columns: Columns, shape: Shape, minimum: int) -> Iterator[Blocker]:
    """Yield a sentence for each rule that keeps pods of this shape apart, if there are fewer domains than pods."""
    never = "this can never fit on the nodes there are"
    apart = [
        (term.key, f"podAntiAffinity allows one of them {domain_phrase(term.key, 'a')}")
        for term in terms_of_shape(shape)
        if term.kind == ANTI and shape.namespace in term.namespaces and term.matcher.matches(shape.labels)
    ]
    rows = _matching(columns, shape) if apart or shape.host_ports else columns.alive[: columns.n]
    for key, rule in dict.fromkeys(apart):
        ids = columns.label(key).ids[: columns.n][rows]
        domains = len(np.unique(ids))
        if (
            ids.size and ids.all() and domains < minimum
        ):  # a node without the label is not in any domain: no limit there
            word = plural(domains, domain_word(key))
            yield Blocker("NeverFits", f"{minimum} pods are needed and {rule}; there are {word}: {never}")
    if shape.host_ports and 0 < int(rows.sum()) < minimum:
        ports = few([str(port) for _, _, port in shape.host_ports], "and")
        text = f"{minimum} pods are needed and host port {ports} allows one of them on a node"
        yield Blocker("NeverFits", f"{text}; there are {plural(int(rows.sum()), 'node')}: {never}")


def node_blockers(columns: Columns, shape: Shape) -> Iterator[Blocker]:
    """Yield the facts that only a change of the nodes can end."""
    if not columns.count:
        yield Blocker("NoNodes", "the cluster has no nodes")
        return
    yield from (Blocker("NodeSelector", text) for text in _labels(columns, shape))
    yield from (Blocker("NoDomain", text) for text in missing_topology(columns, shape))
    rows = _matching(columns, shape)
    if not rows.any():  # a selector that is mended must not meet the next surprise
        yield from (Blocker("NeverFits", text) for text in too_large(columns, shape, columns.alive[: columns.n]))
        return
    only = "" if rows.sum() == columns.count else " that its node selector and affinity allow"
    yield from (Blocker("NeverFits", text) for text in too_large(columns, shape, rows, only))
    yield from _taints(columns, shape, rows)


def _labels(columns: Columns, shape: Shape) -> Iterator[str]:
    missing = False
    for key, value in shape.node_selector.items():
        column = columns.label(key)
        if not (column.ids[: columns.n] == column.id_of(value)).any():
            missing = True
            yield f"no node has label {key}={value} (nodeSelector; {_known(columns, key)})"
    if shape.node_selector and not missing and not selected(shape, columns).any():
        pairs = ", ".join(f"{key}={value}" for key, value in shape.node_selector.items())
        yield f"no node has all labels of the nodeSelector: {pairs}"
    required = required_terms(shape)
    if required is not None and not _admitted(columns, required).any():
        rules = [rule for term in required.node_selector_terms for rule in term.match_expressions or ()]
        unmet = dict.fromkeys(rule.key for rule in rules if not by_label(rule, columns).any())
        known = f" ({'; '.join(_known(columns, key) for key in list(unmet)[:MOST_NAMED])})" if unmet else ""
        yield f"no node matches the required node affinity: {terms(required)}{known}"


def _known(columns: Columns, key: str) -> str:
    column = columns.label(key)
    found = [value_id for value_id in np.unique(column.ids[: columns.n]).tolist() if value_id]
    if len(found) > MOST_VALUES:
        return f"nodes have {len(found)} other values of it"
    values = sorted(column.values[value_id] for value_id in found)
    return f"nodes have {key}={few(values, 'or')}" if values else f"no node has a label {key}"


def _taints(columns: Columns, shape: Shape, rows: Bools) -> Iterator[Blocker]:
    """rows: the nodes that the shape may use if taints are ignored, shape (n,), at least one"""
    sets, counts = np.unique(columns.taint_set[: columns.n][rows], return_counts=True)
    closed: Counter[str] = Counter()
    for number, count in zip(sets.tolist(), counts.tolist(), strict=True):
        taint = untolerated(shape.tolerations, columns.taint_sets[number])
        if taint is not None:
            closed[taint_text(taint)] += count
            continue
        cordoned = columns.unschedulable[: columns.n][rows & (columns.taint_set[: columns.n] == number)]
        if not cordoned.all() or tolerated(shape.tolerations, CORDON):
            return
        closed["cordoned"] += count
    worst, count = closed.most_common(1)[0]
    total = int(rows.sum())
    which = "" if total == columns.count else "matching "
    nodes = f"the only {which}node" if total == 1 else f"all {total} {which}nodes"
    if worst == "cordoned" or UNSCHEDULABLE_TAINT in worst:
        first = columns.names[int(np.flatnonzero(rows)[0])]
        text = f"{nodes} {'is' if total == 1 else 'are'} cordoned; `kubectl uncordon {first}` opens one"
        yield Blocker("Cordoned", text)
    elif worst.startswith(NODE_LOST_TAINTS):
        others = "" if count == total else ", or tainted otherwise"
        yield Blocker("NotReady", f"{nodes} {'is' if total == 1 else 'are'} not ready (taint {worst}){others}")
    else:
        others = "" if count == total else " or other taints"
        text = f"{nodes} {'has' if total == 1 else 'have'} taint {worst}{others}, which it does not tolerate"
        yield Blocker("Taints", text)


def _matching(columns: Columns, shape: Shape) -> Bools:
    """Return the rows that the node selector and the required node affinity allow, shape (n,)."""
    required = required_terms(shape)
    rows = selected(shape, columns)
    return rows & _admitted(columns, required) if required is not None else rows


def _admitted(columns: Columns, required: NodeSelector) -> Bools:
    rows = np.zeros(columns.n, dtype=np.bool_)
    for term in required.node_selector_terms:
        rows |= matching(term, columns)
    return rows
