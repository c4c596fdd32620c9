"""Name what rules out every node for a pod: labels, requests larger than any node, claims, taints, cordons.

Filters count nodes per reason. These sentences name the label, the amount or the taint, and say when waiting cannot
help. Only reads the columns and the storage objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from phalanx.engine.placement.outcome import amount_word, plural
from phalanx.engine.placement.rule_words import (
    claim_facts,
    few,
    missing_topology,
    taint_text,
    terms,
    too_large,
    volume_facts,
)
from phalanx.engine.state.columns import PODS, Bools, Columns
from phalanx.engine.state.objects import Objects
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects.pod import NodeSelector
from phalanx.model.selectors import node_selector
from phalanx.model.tolerations import untolerated

MOST_BLOCKERS = 6


class Blocker(NamedTuple):
    code: str  # for programs, as in PendingReason
    text: str


def blockers_of(columns: Columns, objects: Objects, shapes: Iterable[Shape]) -> list[str]:
    """Return one sentence per fact that rules out every node for a pod of one of these shapes, without repeats."""
    found: dict[str, None] = {}
    for shape in shapes:
        facts = (*volume_facts(objects, shape), *claim_facts(objects, shape))
        for text in (*facts, *(each.text for each in node_blockers(columns, shape))):
            found.setdefault(text)
    return list(found)[:MOST_BLOCKERS]


def total_blockers(columns: Columns, needed: Mapping[Shape, int]) -> list[str]:
    """Return a sentence for each resource of which the nodes together have less than these pods ask for.

    needed: number of pods that must run at once, by shape
    """
    sums: Counter[int] = Counter()
    matching = np.zeros(columns.n, dtype=np.bool_)
    for shape, count in needed.items():
        matching |= _matching(columns, shape)
        for rid, amount in shape.requests:
            sums[rid] += int(amount * count)
    found = []
    for rid, amount in sums.items():
        total = float(columns.alloc[rid, : columns.n][matching].sum())
        if rid != PODS and amount > total > 0:
            name = columns.resource_names[rid]
            pods, nodes = plural(sum(needed.values()), "pod"), plural(int(matching.sum()), "matching node")
            found.append(
                f"{pods} ask for {amount_word(name, amount)} {name}; the {nodes} "
                f"have {amount_word(name, total)}: this can never fit on the nodes there are"
            )
    return found


def node_blockers(columns: Columns, shape: Shape) -> Iterator[Blocker]:
    """Yield the facts that only a change of the nodes can end."""
    if not columns.count:
        yield Blocker("NoNodes", "the cluster has no nodes")
        return
    yield from (Blocker("NodeSelector", text) for text in _labels(columns, shape))
    yield from (Blocker("NoDomain", text) for text in missing_topology(columns, shape))
    matching = _matching(columns, shape)
    if not matching.any():  # a selector that is mended must not meet the next surprise
        yield from (Blocker("NeverFits", text) for text in too_large(columns, shape, columns.alive[: columns.n]))
        return
    only = "" if matching.sum() == columns.count else " that its node selector and affinity allow"
    yield from (Blocker("NeverFits", text) for text in too_large(columns, shape, matching, only))
    yield from _taints(columns, shape, matching)


def _labels(columns: Columns, shape: Shape) -> Iterator[str]:
    there = [node.metadata.labels for node in columns.nodes[: columns.n] if node is not None]
    missing = False
    for key, value in shape.node_selector.items():
        values = sorted({labels[key] for labels in there if key in labels})
        if value not in values:
            missing = True
            known = f"nodes have {key}={few(values, 'or')}" if values else f"no node has a label {key}"
            yield f"no node has label {key}={value} (nodeSelector; {known})"
    wanted = shape.node_selector.items()
    if wanted and not missing and not any(wanted <= labels.items() for labels in there):
        pairs = ", ".join(f"{key}={value}" for key, value in wanted)
        yield f"no node has all labels of the nodeSelector: {pairs}"
    required = shape.node_affinity.required if shape.node_affinity is not None else None
    if required is not None and not _matched(columns, {}, required).any():
        yield f"no node matches the required node affinity: {terms(required)}"


def _taints(columns: Columns, shape: Shape, matching: Bools) -> Iterator[Blocker]:
    rows = np.flatnonzero(matching)
    closed: Counter[str] = Counter()
    for row in rows:
        taint = untolerated(shape.tolerations, columns.taint_sets[columns.taint_set[row]])
        if taint is not None:
            closed[taint_text(taint)] += 1
        elif not columns.unschedulable[row]:
            return
        else:
            closed["cordoned"] += 1
    worst, count = closed.most_common(1)[0]
    nodes = "the only matching node" if len(rows) == 1 else f"all {len(rows)} matching nodes"
    if worst == "cordoned" or "node.kubernetes.io/unschedulable" in worst:
        text = f"{nodes} {'is' if len(rows) == 1 else 'are'} cordoned; `kubectl uncordon NODE` opens one"
        yield Blocker("Cordoned", text)
    else:
        others = "" if count == len(rows) else " or other taints"
        text = f"{nodes} {'has' if len(rows) == 1 else 'have'} taint {worst}{others}, which it does not tolerate"
        yield Blocker("Taints", text)


def _matching(columns: Columns, shape: Shape) -> Bools:
    """Return the rows that the node selector and the required node affinity allow, shape (n,)."""
    required = shape.node_affinity.required if shape.node_affinity is not None else None
    return _matched(columns, shape.node_selector, required)


def _matched(columns: Columns, wanted: Mapping[str, str], required: NodeSelector | None) -> Bools:
    matcher = node_selector(required) if required is not None else None
    return np.array(
        [
            node is not None
            and wanted.items() <= node.metadata.labels.items()
            and (matcher is None or matcher.matches(node.metadata.labels, node.metadata.name))
            for node in columns.nodes[: columns.n]
        ],
        dtype=np.bool_,
    )
