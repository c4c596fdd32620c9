"""Match each claim of a pod with a volume, or with a new volume to provision, on all nodes at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from phalanx.base.well_known import NO_PROVISIONER
from phalanx.engine.framework import Bools, Floats
from phalanx.engine.plugins.volume_state import VolumeState, class_of, fully_bound
from phalanx.engine.state.node_terms import matching as term_matching
from phalanx.engine.state.pod_rules import matcher_of
from phalanx.model.objects import CSIDriver, CSIStorageCapacity, PersistentVolume, PersistentVolumeClaim, StorageClass
from phalanx.model.objects.meta import LabelSelector
from phalanx.model.objects.pod import NodeSelectorRequirement, NodeSelectorTerm, Resources
from phalanx.model.quantity import BadQuantity, nanos, units
from phalanx.model.selectors import LabelMatcher

Ints = npt.NDArray[np.int64]

NOT_REACHABLE = "node(s) didn't match PersistentVolume's node affinity"
NO_VOLUME = "node(s) didn't find available persistent volumes to bind"
NO_SPACE = "node(s) did not have enough free storage"
VOLUME_GONE = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"


def waits_for_consumer(claim: PersistentVolumeClaim, state: VolumeState) -> bool:
    """Return True if the claim waits for its first consumer; a claim that names a volume does not wait."""
    storage_class = state.storage_class(class_of(claim))
    if storage_class is None or claim.spec.volume_name:
        return False
    return storage_class.volume_binding_mode == "WaitForFirstConsumer"


def storage(resources: Resources | None) -> int:
    """Return the exact quantity in nano-units; an invalid or missing quantity is 0."""
    try:
        return nanos((resources or {}).get("storage", 0))
    except (BadQuantity, ValueError):
        return 0


def whole_bytes(quantity: str | int | float | None) -> int:
    try:
        return units(quantity) if quantity is not None else 0
    except (BadQuantity, ValueError):
        return 0


class Matching:
    """Result for one pod. `reasons`: reason -> (capacity,) rows; a row may have several reasons."""

    NO_SPACE = NO_SPACE

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.reasons: dict[str, Bools] = {}
        # Claims in matching order, each with the volumes tried and (capacity,) the chosen volume; -1: none.
        self.static: list[tuple[PersistentVolumeClaim, list[PersistentVolume], Ints]] = []
        # Claims in provisioning order, with the rows that need it and the pool (index into pools; -1: none).
        self.provisioned: list[tuple[PersistentVolumeClaim, Bools, list[CSIStorageCapacity], Ints]] = []

    def add(self, reason: str, rows: Bools) -> None:
        if reason in self.reasons:
            self.reasons[reason] = self.reasons[reason] | rows
        else:
            self.reasons[reason] = rows.copy()

    def on(
        self, row: int
    ) -> tuple[list[tuple[PersistentVolumeClaim, PersistentVolume]], list[PersistentVolumeClaim], str]:
        """Return (claims with volumes, claims to provision, reasons for failure) of one row."""
        for reason, rows in self.reasons.items():
            if rows[row]:
                return [], [], reason
        static = [(claim, volumes[chosen[row]]) for claim, volumes, chosen in self.static if chosen[row] >= 0]
        return static, [claim for claim, rows, _, _ in self.provisioned if rows[row]], ""

    def scores(self, shape: Sequence[tuple[int, int]]) -> Floats:
        """Return (capacity,) 0..100: the mean over storage classes of the shape's value at their utilization."""
        if not self.static and not any(pools for _, _, pools, _ in self.provisioned):
            return np.zeros(self.capacity)
        asked: dict[str, Ints] = {}  # by storage class
        offered: dict[str, Ints] = {}
        present: dict[str, Bools] = {}
        has_static: Bools = np.zeros(self.capacity, dtype=np.bool_)

        def share(name: str, rows: Bools) -> tuple[Ints, Ints]:
            zero = np.zeros(self.capacity, dtype=np.int64)
            known = present.get(name)
            present[name] = rows if known is None else known | rows
            return asked.setdefault(name, zero), offered.setdefault(name, zero.copy())

        for claim, volumes, chosen in self.static:
            for number, volume in enumerate(volumes):
                rows = chosen == number
                if rows.any():
                    wanted, size = share(volume.spec.storage_class_name, rows)
                    wanted[rows] += whole_bytes((claim.spec.resources.requests or {}).get("storage"))
                    size[rows] += whole_bytes(volume.spec.capacity.get("storage"))
                    has_static |= rows
        for claim, rows, pools, chosen in self.provisioned:
            for number, pool in enumerate(pools):
                there = rows & (chosen == number) & ~has_static
                if there.any():
                    wanted, size = share("provisioned " + class_of(claim), there)
                    wanted[there] += whole_bytes((claim.spec.resources.requests or {}).get("storage"))
                    size[there] = whole_bytes(pool.capacity)
        total = np.zeros(self.capacity, dtype=np.int64)
        classes = np.zeros(self.capacity, dtype=np.int64)
        points = [(utilization, score * 10) for utilization, score in shape]
        for name, wanted in asked.items():
            size = offered[name]
            used = present[name]
            safe = np.where(size > 0, size, 1)
            utilization = np.where((size == 0) | (wanted > size), 100, wanted * 100 // safe)
            table = np.array([broken_line(points, x) for x in range(101)], dtype=np.int64)
            total += np.where(used, table[utilization], 0)
            classes += used
        mean = total / np.maximum(classes, 1)
        found: Floats = np.floor(mean) + (mean - np.floor(mean) >= 0.5)
        return found


def broken_line(points: Sequence[tuple[int, int]], x: int) -> int:
    """Interpolate linearly between the points, constant outside; truncate towards zero."""
    for i, (right, high) in enumerate(points):
        if x <= right:
            if i == 0:
                return high
            left, low = points[i - 1]
            rise = (high - low) * (x - left)
            step = abs(rise) // (right - left)
            return low + (step if rise >= 0 else -step)
    return points[-1][1]


def match_claims(claims: Sequence[PersistentVolumeClaim], state: VolumeState) -> Matching:
    """Match bound claims first, then claims that are already being provisioned, then the rest, smallest first."""
    columns = state.columns
    result = Matching(columns.capacity)
    everywhere: Bools = np.ones(columns.capacity, dtype=np.bool_)
    _bound(claims, state, result, everywhere)
    unbound = [claim for claim in claims if not fully_bound(claim)]
    if not unbound:
        return result
    left = everywhere.copy()  # rows that have not failed yet
    waiting: list[tuple[PersistentVolumeClaim, Bools]] = []
    to_match = []
    for claim in unbound:
        selected = state.selected_node(claim)
        if selected is None:
            to_match.append(claim)
            continue
        row = columns.row_of.get(selected, -1)
        here = np.zeros(columns.capacity, dtype=np.bool_)
        if row >= 0:
            here[row] = True
        result.add(NO_VOLUME, left & ~here)
        left &= here
        waiting.append((claim, everywhere))
    to_match.sort(key=lambda claim: storage(claim.spec.resources.requests))
    taken: dict[str, Bools] = {}  # volume -> rows where an earlier claim uses it
    for claim in to_match:
        volumes, chosen = _match(claim, state, taken)
        result.static.append((claim, volumes, chosen))
        for number, volume in enumerate(volumes):
            rows = chosen == number
            if rows.any():
                known = taken.get(volume.metadata.name)
                taken[volume.metadata.name] = rows if known is None else known | rows
        waiting.append((claim, chosen < 0))
    for claim, rows in waiting:
        needed = rows & left
        if not needed.any():
            continue
        reason, fails, pools, pool_of = _provision(claim, state)
        for why, at in zip(reason, fails, strict=True):
            failed = needed & at
            if failed.any():
                result.add(why, failed)
                left &= ~failed
                needed &= ~failed
        result.provisioned.append((claim, needed, pools, pool_of))
    return result


def _bound(claims: Sequence[PersistentVolumeClaim], state: VolumeState, result: Matching, everywhere: Bools) -> None:
    """Check bound claims; the first that fails on a row gives the reason there."""
    left = everywhere.copy()
    for claim in claims:
        if not fully_bound(claim):
            continue
        volume = state.volume(claim.spec.volume_name)
        if volume is None:
            result.add(VOLUME_GONE, left)
            return
        reach = state.reach(volume)
        if reach is not None:
            far = left & ~reach
            if far.any():
                result.add(NOT_REACHABLE, far)
            left &= reach


def _match(
    claim: PersistentVolumeClaim, state: VolumeState, taken: dict[str, Bools]
) -> tuple[list[PersistentVolume], Ints]:
    """Choose for every row the volume reserved for the claim, else the smallest match (equal sizes: by name)."""
    capacity = state.columns.capacity
    chosen: Ints = np.full(capacity, -1, dtype=np.int64)
    key = (claim.metadata.namespace, claim.metadata.name)
    wanted = storage(claim.spec.resources.requests)
    suitable: list[PersistentVolume] = []
    for volume in sorted(state.objects.all(PersistentVolume), key=lambda v: v.metadata.name):
        if class_of(volume) != class_of(claim) or volume.metadata.deletion_timestamp is not None:
            continue
        owner = state.owner_of(volume)
        mine = owner is not None and owner[:2] == key and owner[2] in ("", claim.metadata.uid)
        if (owner is not None and not mine) or storage(volume.spec.capacity) < wanted:
            continue
        if (volume.spec.volume_mode or "Filesystem") != (claim.spec.volume_mode or "Filesystem"):
            continue
        if mine:
            # The claim can use no other volume, even on rows that cannot reach this one.
            rows = _free_rows(volume, state, taken)
            chosen[rows] = 0
            return [volume], chosen
        if _suits(volume, claim):
            suitable.append(volume)
    suitable.sort(key=lambda v: (storage(v.spec.capacity), v.metadata.name))
    for number, volume in enumerate(suitable):
        rows = _free_rows(volume, state, taken)
        chosen[rows & (chosen < 0)] = number
    return suitable, chosen


def _suits(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    if volume.status.phase != "Available":
        return False
    if claim.spec.selector is not None and not matcher_of(claim.spec.selector).matches(volume.metadata.labels):
        return False
    return set(claim.spec.access_modes or ()) <= set(volume.spec.access_modes or ())


def _free_rows(volume: PersistentVolume, state: VolumeState, taken: dict[str, Bools]) -> Bools:
    reach = state.reach(volume)
    rows: Bools = np.ones(state.columns.capacity, dtype=np.bool_) if reach is None else reach.copy()
    gone = taken.get(volume.metadata.name)
    if gone is not None:
        rows &= ~gone
    return rows


def _provision(
    claim: PersistentVolumeClaim, state: VolumeState
) -> tuple[list[str], list[Bools], list[CSIStorageCapacity], Ints]:
    """Check dynamic provisioning; return (reasons, rows of each reason, pools, pool by row)."""
    columns = state.columns
    everywhere: Bools = np.ones(columns.capacity, dtype=np.bool_)
    none: Ints = np.full(columns.capacity, -1, dtype=np.int64)
    storage_class = state.storage_class(class_of(claim))
    if storage_class is None or storage_class.provisioner in ("", NO_PROVISIONER):
        return [NO_VOLUME], [everywhere], [], none
    reasons, fails = [], []
    if storage_class.allowed_topologies:
        reasons.append(NO_VOLUME)
        fails.append(~_allowed(storage_class, state))
    driver = state.objects.get(CSIDriver, "", storage_class.provisioner)
    tracked = driver is not None and bool(driver.spec.storage_capacity)
    if not tracked or "storage" not in (claim.spec.resources.requests or {}):
        return reasons, fails, [], none
    wanted = whole_bytes((claim.spec.resources.requests or {}).get("storage"))
    pools: list[CSIStorageCapacity] = []
    pool_of = none
    ordered = sorted(state.objects.all(CSIStorageCapacity), key=lambda c: (c.metadata.namespace, c.metadata.name))
    for pool in ordered:
        limit = pool.maximum_volume_size if pool.maximum_volume_size is not None else pool.capacity
        if pool.storage_class_name != storage_class.metadata.name or limit is None or whole_bytes(limit) < wanted:
            continue
        if pool.node_topology is None:
            continue
        pool_of[_labelled(pool.node_topology, state) & (pool_of < 0)] = len(pools)
        pools.append(pool)
    reasons.append(NO_SPACE)
    fails.append(pool_of < 0)
    return reasons, fails, pools, pool_of


def _allowed(storage_class: StorageClass, state: VolumeState) -> Bools:
    """Return the rows in one of the class's allowedTopologies; a term without expressions matches nothing."""
    columns = state.columns
    inside: Bools = np.zeros(columns.capacity, dtype=np.bool_)
    for term in storage_class.allowed_topologies or ():
        expressions = [
            NodeSelectorRequirement(key=e.key, operator="In", values=e.values)
            for e in term.match_label_expressions or ()
        ]
        inside[: columns.n] |= term_matching(NodeSelectorTerm(match_expressions=expressions), columns)
    return inside


def _labelled(selector: LabelSelector, state: VolumeState) -> Bools:
    """Return the rows whose labels match; each distinct value of a key is evaluated once."""
    columns = state.columns
    matcher: LabelMatcher = matcher_of(selector)
    mask: Bools = np.full(columns.capacity, not matcher.nothing)
    for requirement in matcher.requirements:
        column = columns.label(requirement.key)
        table = [requirement.matches({}), *(requirement.matches({requirement.key: v}) for v in column.values[1:])]
        mask &= np.array(table, dtype=np.bool_)[column.ids]
    return mask
