"""Tiny placement problems in words, a judge for outcomes, and plain enumeration of everything that could be done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import combinations_with_replacement, product

import numpy as np

from phalanx.engine.placement import Composite, Leaf, PlacementProblem, SearchOutcome, ShapeRow, Subtree


def cluster(
    nodes: list[dict[str, object]],
    root: Subtree,
    shapes: list[dict[str, float]],
    *,
    masks: dict[int, list[int]] | None = None,
    caps: dict[int, int] | None = None,
    conflicts: frozenset[tuple[int, int]] = frozenset(),
    budget: int = 20_000,
    reasons: dict[int, list[int]] | None = None,
    reason_names: tuple[str, ...] = (),
) -> PlacementProblem:
    """nodes: {"cpu": 4, "rack": "r1"}: numbers are capacity, texts are labels. masks: shape -> allowed nodes."""
    resources = sorted({k for n in nodes for k, v in n.items() if not isinstance(v, str)} | {"pods"})
    keys = sorted({k for n in nodes for k, v in n.items() if isinstance(v, str)})
    free = np.array([[float(n.get(r, 110 if r == "pods" else 0)) for n in nodes] for r in resources])  # type: ignore[arg-type]
    domains, names = {}, {}
    for key in keys:
        values = sorted({str(n[key]) for n in nodes if key in n})
        domains[key] = np.array([values.index(str(n[key])) if key in n else -1 for n in nodes], dtype=np.int32)
        names[key] = values
    rows = []
    for number, request in enumerate(shapes):
        vector = np.array([1.0 if r == "pods" else float(request.get(r, 0)) for r in resources])
        mask = np.ones(len(nodes), dtype=bool)
        if masks is not None and number in masks:
            mask[:] = False
            mask[masks[number]] = True
        cap = np.full(len(nodes), caps[number]) if caps is not None and number in caps else None
        why = np.array(reasons[number], dtype=np.int16) if reasons is not None and number in reasons else None
        rows.append(ShapeRow(vector, mask, cap, reasons=why))
    return PlacementProblem(
        resources, free, rows, root, domains, names, conflicts, reason_names=reason_names, budget=budget
    )


Sitting = dict[tuple[int, int], dict[int, int]]  # (id(leaf), shape) -> node -> pods


def sitting_of(outcome: SearchOutcome) -> Sitting:
    found: Sitting = {}
    for share in outcome.shares:
        row = found.setdefault((id(share.leaf), share.shape), {})
        for node, count in zip(share.nodes, share.counts, strict=True):
            row[int(node)] = row.get(int(node), 0) + int(count)
    return found


def faults(problem: PlacementProblem, sitting: Sitting) -> list[str]:
    """Every rule the placement breaks."""
    bad: list[str] = []
    on: list[dict[int, int]] = [{} for _ in range(problem.node_count)]
    for (_, shape), row in sitting.items():
        for node, count in row.items():
            if count < 0:
                bad.append("negative count")
            on[node][shape] = on[node].get(shape, 0) + count
    for node, pods in enumerate(on):
        used = sum((problem.shapes[s].request * c for s, c in pods.items()), np.zeros(len(problem.resources)))
        if (used > problem.free[:, node]).any():
            bad.append(f"overcommit on {node}")
        for shape, count in pods.items():
            asked = problem.shapes[shape]
            if count and not asked.mask[node]:
                bad.append(f"shape {shape} not allowed on {node}")
            if asked.cap is not None and count > asked.cap[node]:
                bad.append(f"cap of shape {shape} on {node}")
        bad += [f"conflict {a} {b} on {node}" for a, b in problem.conflicts if pods.get(a) and pods.get(b)]

    def visit(group: Subtree) -> tuple[bool, set[int]]:
        nodes: set[int] = set()
        if isinstance(group, Leaf):
            placed = 0
            for shape, most in group.demand:
                row = sitting.get((id(group), shape), {})
                placed += sum(row.values())
                nodes |= {n for n, c in row.items() if c}
                if sum(row.values()) > most:
                    bad.append(f"too many pods of {group.name}")
            ok = placed + group.satisfied >= group.minimum
        else:
            below = [visit(child) for child in group.children]
            ok = sum(satisfied for satisfied, _ in below) >= group.minimum
            for _, where in below:
                nodes |= where
        if nodes and not ok:
            bad.append(f"partial {group.name}")
        if group.key is not None and nodes:
            domains = {int(problem.domains[group.key][n]) for n in nodes}
            if len(domains) > 1 or -1 in domains or (group.pinned >= 0 and domains != {group.pinned}):
                bad.append(f"topology of {group.name}")
        return ok, nodes

    if not visit(problem.root)[0]:
        bad.append("root not satisfied")
    return bad


def _leaves(group: Subtree) -> Iterator[Leaf]:
    if isinstance(group, Leaf):
        yield group
    else:
        for child in group.children:
            yield from _leaves(child)


def by_hand(problem: PlacementProblem) -> int | None:
    """The most pods any valid placement seats, by trying them all; None if there is no valid placement."""
    best: int | None = None
    alike = [(leaf, shape, count) for leaf in _leaves(problem.root) for shape, count in leaf.demand]
    spots = range(-1, problem.node_count)  # -1 = stays pending
    for choice in product(*(combinations_with_replacement(spots, count) for _, _, count in alike)):
        seated = sum(node >= 0 for nodes in choice for node in nodes)
        if best is not None and seated <= best:
            continue
        sitting: Sitting = {}
        for (leaf, shape, _), nodes in zip(alike, choice, strict=True):
            counts = Counter(node for node in nodes if node >= 0)
            if counts:
                sitting[id(leaf), shape] = dict(counts)
        if not faults(problem, sitting):
            best = seated
    return best


__all__ = ["Composite", "Leaf", "by_hand", "cluster", "faults", "sitting_of"]
