"""Find changes that would make a unit fit: small changes of the problem, each tried by the search that failed.

Changes are tried in a fixed order with a separate budget; the engine's state does not change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from phalanx.base.well_known import INSTANCE_TYPE, NODE_LOST_TAINTS, UNSCHEDULABLE_TAINT
from phalanx.engine.explain.trial import Edit, changed, edited, fits
from phalanx.engine.explain.values import Relaxation
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.framework.traits import traits_of
from phalanx.engine.groups.build import Built
from phalanx.engine.groups.group_plugins import GroupPlugins
from phalanx.engine.placement import Certificate, Composite, Leaf, PlacementProblem, ShapeRow, Subtree
from phalanx.engine.placement.outcome import domain_phrase, domain_word, plural
from phalanx.engine.placement.plain import CANNOT_ALLOCATE, about_devices, code_of_filter, without
from phalanx.engine.placement.problem import groups as parts_below
from phalanx.engine.placement.problem import leaves
from phalanx.engine.scheduling.attempt.answers import Cause, Refused
from phalanx.engine.state.columns import Bools, Columns
from phalanx.model.groups import Group
from phalanx.model.objects import Node

BUDGET = 1_000  # expansions per trial
MOST_NODES = 64  # maximum number of nodes of one type that a trial adds
TYPES = 3  # maximum number of node types that are tried
MOST_EXAMPLES = 8  # maximum number of nodes of a type that are evaluated


def relaxations(
    state: ClusterState, group: Group, refused: Refused, group_plugins: GroupPlugins | None
) -> list[Relaxation]:
    """Return changes that help a tree that does not fit, if the failure certificate names where it fails."""
    certificate = refused.outcome.certificate if refused.outcome is not None else None
    if refused.built is None:
        return []
    if refused.cause is Cause.RULES:  # counting finds room: only fewer pods are tried
        chain = [
            Certificate(leaf.name, False, None, leaf.minimum, 0, 0, None, None)
            for leaf in leaves(refused.built.problem.root)
        ]
        return list(_Relaxer(state, group, refused.built, chain, group_plugins).members())
    if certificate is None or certificate.extra:
        return []
    chain = [certificate]
    while chain[-1].inner is not None:
        chain.append(chain[-1].inner)
    relaxer = _Relaxer(state, group, refused.built, chain, group_plugins)
    return [*relaxer.topology(), *relaxer.members(), *relaxer.filters(), *relaxer.nodes()]


class _Relaxer:
    def __init__(
        self,
        state: ClusterState,
        group: Group,
        built: Built,
        chain: list[Certificate],
        group_plugins: GroupPlugins | None,
    ) -> None:
        self._cluster = state
        self._group = group
        self._points = group_plugins
        self._columns = state.columns
        # Masks are shared with evaluations, which change with every trial.
        shapes = [replace(shape, mask=shape.mask.copy()) for shape in built.problem.shapes]
        small = changed(built.problem, shapes=shapes, budget=min(BUDGET, built.problem.budget))
        self._built = replace(built, problem=small)
        self._chain = chain
        self._parts = {part.name: part for part in parts_below(small.root)}

    def _fits(self, trial: Built, *, grown: bool = False) -> bool | None:
        """Return whether a trial fits; None: unknown. `grown`: it has added nodes, which plugins cannot evaluate."""
        return fits(self._cluster, self._group, trial, None if grown else self._points)

    def _failing(self) -> Iterator[tuple[Certificate, Subtree]]:
        """Yield the groups named by the certificate, innermost first."""
        for why in reversed(self._chain):
            part = self._parts.get(why.group)
            if part is not None:
                yield why, part

    # ---- topology

    def topology(self) -> Iterator[Relaxation]:
        """Widen the topology key of the innermost constrained level step by step until it fits; finally try no key."""
        for why, part in self._failing():
            if part.key is None:
                continue
            below = domain_word(part.key)
            for key in [*self._wider(part.key), None]:
                trial = edited(self._built, _set(part, key=key, pinned=-1), partial(self._with_key, key))
                if key is not None and part.pinned >= 0:
                    trial = self._repinned(trial, part, key)
                helps = self._fits(trial)
                change = f"{below}→{domain_word(key)}" if key is not None else f"without the {below} constraint it"
                verb = {True: "fits now", False: "does not fit either", None: "gave no answer within the search budget"}
                yield Relaxation("topology", f"{change} {verb[helps]}", helps, helps is not None, why.group, key or "")
                if helps:
                    return
            return

    def _wider(self, key: str) -> list[str]:
        """Return label keys whose domains are unions of this key's domains, narrowest first."""
        domain_of: dict[str, dict[str, str]] = {}  # wider key -> our value -> its value
        sizes: dict[str, set[str]] = {}
        broken: set[str] = {key}
        mine: set[str] = set()
        for node in self._columns.nodes:
            value = node.metadata.labels.get(key) if node is not None else None
            if node is None or value is None:
                continue
            new = value not in mine
            mine.add(value)
            for other, name in node.metadata.labels.items():
                if other in broken:
                    continue
                known = domain_of.setdefault(other, {})
                if known.setdefault(value, name) != name or (new and len(known) != len(mine)):
                    broken.add(other)
                sizes.setdefault(other, set()).add(name)
        found = [
            other
            for other, known in domain_of.items()
            if other not in broken and len(known) == len(mine) and 1 < len(sizes[other]) < len(mine)
        ]
        return sorted(found, key=lambda other: (-len(sizes[other]), other))

    def _with_key(self, key: str | None, problem: PlacementProblem) -> PlacementProblem:
        if key is None or key in problem.domains:
            return problem
        ids: dict[str, int] = {}
        column = np.full(self._columns.n, -1, dtype=np.int32)
        for row, node in enumerate(self._columns.nodes):
            value = node.metadata.labels.get(key) if node is not None else None
            if value is not None:
                column[row] = ids.setdefault(value, len(ids))
        return changed(
            problem,
            domains={**problem.domains, key: column},
            domain_names={**problem.domain_names, key: list(ids)},
        )

    def _repinned(self, trial: Built, part: Subtree, key: str) -> Built:
        """Pin the group to the wider domain around its current one, because running members stay."""
        assert part.key is not None
        inside = np.flatnonzero(self._built.problem.domains[part.key] == part.pinned)
        wide = int(trial.problem.domains[key][inside[0]]) if len(inside) else -1
        return edited(trial, _set(part, pinned=wide))

    # ---- members

    def members(self) -> Iterator[Relaxation]:
        """Find the largest smaller minimum that fits, for the innermost group that has one."""
        for why, part in self._failing():
            low = part.satisfied if isinstance(part, Leaf) else 0
            best = self._largest(part, low, part.minimum - 1)
            if best <= low or best <= 0:
                continue
            word = "minGroupCount" if isinstance(part, Composite) else "minCount"
            text = f"{word} {best} instead of {part.minimum} fits now"
            yield Relaxation("members", text, True, True, why.group, str(best))
            return

    def _largest(self, part: Subtree, low: int, high: int) -> int:
        """Return the largest minimum above `low`, up to `high`, that fits; `low` if none does."""
        while low < high:
            middle = (low + high + 1) // 2
            trial = edited(self._built, _set(part, minimum=middle))
            if self._fits(trial):
                low = middle
            else:
                high = middle - 1
        return low

    # ---- filters

    def filters(self) -> Iterator[Relaxation]:
        """Find filters (taints, cordons, node affinity, …) without which it would fit: each is skipped alone."""
        names: dict[str, None] = {}
        for evaluation in self._built.evaluations:
            names.update((plugin.name, None) for plugin, _ in evaluation.filters if not traits_of(plugin).counted)
        for name in names:
            found = self._without(name)
            if found is None:
                continue
            trial, rows, reason = found
            if about_devices(reason):
                continue  # its pods would have no devices
            # The filters would still reject it, so only count resources.
            if self._fits(replace(trial, coupled=False)):
                text = f"it would fit now {without(reason, name)}, on {plural(rows, 'more node')}"
                code = code_of_filter(reason)[0]
                yield Relaxation("filter", text, True, not self._ties(), to=name, reason=code)

    def _without(self, name: str) -> tuple[Built, int, str] | None:
        """Return the problem without one filter, the number of nodes that opens, and the filter's reason for them."""
        n = self._columns.n
        opened = np.zeros(n, dtype=np.bool_)
        reason = ""
        shapes = []
        for shape, evaluation in zip(self._built.problem.shapes, self._built.evaluations, strict=True):
            mask = _mask_without(self._columns, evaluation, name)[:n]
            fresh = np.flatnonzero(mask & ~shape.mask)
            shapes.append(replace(shape, mask=mask, slots=None))
            if len(fresh) and evaluation.pre_filter() is None:
                opened[fresh] = True
                asked = next(tracker for plugin, tracker in evaluation.filters if plugin.name == name)
                reason = reason or asked.explain(fresh)[0].reason
        if not reason:
            return None
        trial = edited(self._built, lambda part: part, lambda problem: changed(problem, shapes=shapes))
        return trial, int(opened.sum()), reason

    # ---- nodes

    def nodes(self) -> Iterator[Relaxation]:
        """Find the smallest number of additional empty nodes of a type, in the domain where it nearly fits."""
        if any(shape.claims for shape in self._built.shapes):
            return  # new nodes need devices: `demand.enough_nodes` publishes some
        rows, where = self._neighbourhood()
        for kind in self._types(rows)[:TYPES]:
            count = self._fewest(kind)
            if not count:
                continue
            more = "1 more free node" if count == 1 else f"{count} more free nodes"
            text = f"{more} {kind.name}{where} would do"
            yield Relaxation("nodes", text, True, not self._ties(), to=f"{count} {kind.example}")

    def _ties(self) -> bool:
        """Return True if members have rules about other pods, volumes or claims, which counting resources omits."""
        return any(s.affinity or s.anti_affinity or s.spread or s.volumes or s.claims for s in self._built.shapes)

    def _neighbourhood(self) -> tuple[Sequence[int], str]:
        """Return the rows of the domain that comes closest at the innermost constrained level, and its description."""
        everywhere = np.flatnonzero(self._columns.alive[: self._columns.n])
        for why, part in self._failing():
            if part.key is None or why.best is None:
                continue
            column = self._built.problem.domains[part.key]
            names = self._built.problem.domain_names[part.key]
            if why.best in names:
                rows = np.flatnonzero((column == list(names).index(why.best)) & self._columns.alive[: self._columns.n])
                return rows.tolist(), f" {domain_phrase(part.key)} {why.best}"
        return everywhere.tolist(), ""

    def _types(self, rows: Sequence[int]) -> list[NodeType]:
        """Return the distinct node types that could take a member if they were empty, most frequent first."""
        columns = self._columns
        rids = [columns.resources[name] for name in self._built.problem.resources]
        examples: dict[tuple[object, ...], list[int]] = {}
        for row in rows:
            if not columns.unschedulable[row]:
                signature = (tuple(columns.alloc[rids, row]), int(columns.taint_set[row]))
                examples.setdefault(signature, []).append(row)
        found = []
        for same in sorted(examples.values(), key=lambda same: (-len(same), same[0]))[: 2 * TYPES]:
            for row in same[:MOST_EXAMPLES]:  # pods may prevent one node and not the next
                allowed = tuple(_takes_when_empty(columns, each, row) for each in self._built.evaluations)
                node = columns.nodes[row]
                if any(allowed) and node is not None:
                    found.append(NodeType(row, allowed, type_words(node), node.metadata.name))
                    break
        return found

    def _fewest(self, kind: NodeType) -> int:
        """Return the smallest number of added nodes that is enough, or 0 if even the maximum is not."""
        high = 1
        while not self._enough(kind, high):
            high *= 2
            if high > MOST_NODES:
                return 0
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._enough(kind, middle) else (middle, high)
        return high

    def _enough(self, kind: NodeType, count: int) -> bool:
        trial = edited(self._built, lambda p: p, lambda problem: self._with_nodes(problem, kind, count))
        # Only count resources: the filters do not know these nodes.
        return self._fits(replace(trial, coupled=False), grown=True) is True

    def _with_nodes(self, problem: PlacementProblem, kind: NodeType, count: int) -> PlacementProblem:
        row = kind.row
        rids = [self._columns.resources[name] for name in problem.resources]
        fresh = np.repeat(self._columns.alloc[rids, row][:, None], count, axis=1)
        shapes = [_grown(shape, row, count, ok) for shape, ok in zip(problem.shapes, kind.allowed, strict=True)]
        domains = {key: np.append(ids, np.repeat(ids[row], count)) for key, ids in problem.domains.items()}
        used = None if problem.used is None else np.hstack([problem.used, np.zeros_like(fresh)])
        free = np.hstack([problem.free, fresh])
        order = (
            None if problem.order is None else np.append(problem.order, np.arange(len(problem.order), free.shape[1]))
        )
        return changed(problem, free=free, shapes=shapes, domains=domains, used=used, order=order)


def _set(part: Subtree, **fields: Any) -> Edit:
    """Return an edit of one group, selected by its name."""
    return lambda other: replace(other, **fields) if other.name == part.name else other


class NodeType(msgspec.Struct, frozen=True):
    row: int  # row of an example node
    allowed: tuple[bool, ...]  # per shape: whether its filters accept such a node if it is empty
    name: str
    example: str


def type_words(node: Node) -> str:
    kind = node.metadata.labels.get(INSTANCE_TYPE)
    return f"of type {kind}" if kind else f"like {node.metadata.name}"


def _grown(shape: ShapeRow, row: int, count: int, allowed: bool) -> ShapeRow:
    score = None if shape.score is None else np.append(shape.score, np.repeat(shape.score[row], count))
    cap = None if shape.cap is None else np.append(shape.cap, np.repeat(shape.cap[row], count))
    mask = np.append(shape.mask, np.repeat(allowed, count))
    return replace(shape, mask=mask, cap=cap, slots=None, score=score, reasons=None)


def _takes_when_empty(columns: Columns, evaluation: Evaluation, row: int) -> bool:
    """Return True if a shape would fit the row if the node were empty. All filters except those about usage must accept
    it, and the allocatable resources must suffice. The row is not emptied, so readers of the change log see no
    change."""
    if evaluation.pre_filter() is not None:
        return False
    if any(columns.alloc[rid, row] < amount for rid, amount in evaluation.shape.requests):
        return False
    return all(tracker.mask[row] for plugin, tracker in evaluation.filters if not traits_of(plugin).counted)


def _mask_without(columns: Columns, evaluation: Evaluation, name: str) -> Bools:
    """Return (capacity,) the nodes that all filters but one accept. A cordon is both a field and a taint, and counts as
    one."""
    mask = columns.alive.copy()
    cordons = any(plugin.name == name and traits_of(plugin).cordons for plugin, _ in evaluation.filters)
    for plugin, tracker in evaluation.filters:
        if plugin.name == name:
            if traits_of(plugin).by_taints and not cordons:  # tolerating a node that does not respond helps no pod
                away = [any(taint.key in NODE_LOST_TAINTS for taint in taints) for taints in columns.taint_sets]
                mask &= ~np.array(away)[columns.taint_set]
            continue
        if cordons and traits_of(plugin).by_taints:
            only = [all(taint.key == UNSCHEDULABLE_TAINT for taint in taints) for taints in columns.taint_sets]
            mask &= tracker.mask | (columns.unschedulable & np.array(only)[columns.taint_set])
        else:
            mask &= tracker.mask
    return mask


def for_pod(state: ClusterState, evaluation: Evaluation) -> list[Relaxation]:
    """Count, for one pod that fits no node, the nodes that only a single filter rejects."""
    if evaluation.pre_filter() is not None:
        return []
    found = []
    for plugin, tracker in evaluation.filters:
        rows = _mask_without(state.columns, evaluation, plugin.name) & ~tracker.mask
        if traits_of(plugin).room:  # a node that is too small would not fit even if it were empty
            for rid, amount in evaluation.shape.requests:
                rows &= state.columns.alloc[rid] >= amount
        reasons = tracker.explain(np.flatnonzero(rows)) if rows.any() else ()
        if reasons and about_devices(reasons[0].reason):
            # Without the filter the pod would have no devices: only the end of other pods may help.
            reasons = [each for each in reasons if each.reason == CANNOT_ALLOCATE and not each.unresolvable]
            rows = np.isin(np.arange(len(rows)), np.concatenate([[-1], *(each.rows for each in reasons)]))
        count = int(rows.sum())
        if count:
            first = state.columns.names[int(np.flatnonzero(rows)[0])]
            example = first if count == 1 else f"{first} and {count - 1} more"
            reason = reasons[0].reason
            text = f"{plural(count, 'node')} ({example}) would do {without(reason, plugin.name)}"
            code = code_of_filter(reason)[0]
            # usage cannot be skipped in a query
            left_out = "" if traits_of(plugin).counted or code == "Insufficient" else plugin.name
            how = f"kubectl uncordon {first}" if code == "Cordoned" else ""
            found.append(Relaxation("filter", text, True, True, to=left_out, reason=code, how=how))
    return found
