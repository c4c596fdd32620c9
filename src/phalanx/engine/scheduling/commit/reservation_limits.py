"""Limits of reservations: of the cluster, of a namespace, and its ResourceQuotas."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import numpy.typing as npt

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.settings import ReservationSettings
from phalanx.engine.groups.quota_room import exceeded, not_allowed
from phalanx.engine.reservations.reservation import Rows
from phalanx.engine.scheduling.attempt.unit_requests import PlannedUnit
from phalanx.engine.scheduling.commit.overtaking import namespace_of
from phalanx.engine.scheduling.queue.units import SchedulingUnit
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import Shape
from phalanx.model.objects import ResourceQuota

QUOTA_SECONDS = 5.0  # for the API server to count a pod that has come or gone in the status of a ResourceQuota
QUOTA_CHECK_SECONDS = 1.0  # between two checks
LONG_SECONDS = 86_400.0  # a unit that runs longer counts with all its nodes
Bools = npt.NDArray[np.bool_]


def refusal_of(
    state: ClusterState,
    unit: SchedulingUnit,
    rows: Iterable[tuple[PodRecord, int]],
    held: Iterable[PodRecord],
    settings: ReservationSettings,
) -> str:
    """Return which limit forbids another reservation for a unit; "" if none. `held`: placeholders of other units.

    The first reservation is always allowed: a large gang could wait for ever.
    """
    namespace = namespace_of(unit)
    if text := exceeded(state, namespace, list(unit.records.values())):
        return text
    others = list(held)
    if not others:
        return ""
    names, count = state.columns.names, state.columns.count
    wanted = {names[row] for _, row in rows}
    nodes = wanted | {each.nominated for each in others}
    if len(nodes) > settings.max_reserved_fraction * count:
        return f"reservations may hold {settings.max_reserved_fraction:.0%} of the nodes"
    share = settings.max_reserved_fraction_per_namespace
    mine = wanted | {each.nominated for each in others if each.namespace == namespace}
    if len(mine) > share * count:
        return f"reservations of namespace {namespace} may hold {share:.0%} of the nodes"
    return ""


class QuotaChecks:
    """Find reservations for expected pods that the ResourceQuotas of their namespace do not allow to be created.

    Pods that failed or were deleted no longer use their quota. If the room reserved for their successors did not use
    it either, a tenant whose gangs start and fail in turn would reserve the whole cluster.
    """

    def __init__(self, state: ClusterState) -> None:
        self._cluster = state
        self._since: dict[str, float] = {}  # key of a placeholder -> seconds
        self.next_time: float | None = None  # of the next check; None: nothing to check
        self._checked = float("-inf")  # seconds

    def overdue(self, expected: Sequence[PodRecord]) -> set[str]:
        """Return keys of the placeholders that have been beyond their quota for some seconds. At most once a second."""
        now = self._cluster.now
        if not expected:
            self.next_time = None
            return set()
        if now < self._checked + QUOTA_CHECK_SECONDS:
            return set()
        limited = {quota.metadata.namespace for quota in self._cluster.objects.all(ResourceQuota)}
        found: dict[str, list[PodRecord]] = {}
        for record in expected:
            if record.namespace in limited:
                found.setdefault(record.namespace, []).append(record)
        self._checked, self.next_time = now, now + QUOTA_CHECK_SECONDS if found else None
        beyond = [each.key for name, records in found.items() for each in not_allowed(self._cluster, name, records)]
        self._since = {key: self._since.get(key, now) for key in beyond}
        return {key for key, since in self._since.items() if now - since >= QUOTA_SECONDS}


class PromiseLimits:
    """Count the nodes that promised starts keep empty, or keep for a long time."""

    def __init__(self, state: ClusterState, promised: Iterable[PlannedUnit | None]) -> None:
        self._cluster = state
        self._promised: list[PlannedUnit] = [planned for planned in promised if planned is not None]
        self._any = bool(self._promised)
        self._all = self._none()
        self._of: dict[str, Bools] = {}  # namespace -> (node,)
        self._room: dict[int, Bools] = {}  # by shape: (node,) nodes with room for one more of its pods

    def _none(self) -> Bools:
        return np.zeros(self._cluster.columns.n, dtype=np.bool_)

    def _count(self, namespace: str, rows: Rows) -> None:
        self._all[rows] = True
        self._of.setdefault(namespace, self._none())[rows] = True

    def _count_promised(self) -> None:
        """Count the units that had a promise before; late, because most plans promise no other start."""
        promised, self._promised = self._promised, []
        alike: dict[tuple[str, Shape | None], list[Rows]] = {}
        for planned in promised:
            entry = planned.entry
            if entry.where is not None:
                shape = planned.shape if entry.span <= LONG_SECONDS else None
                alike.setdefault((planned.namespace, shape), []).append(entry.where.rows)
        for (namespace, shape), rows in alike.items():
            self._count(namespace, self._counted(np.concatenate(rows), shape))

    def _counted(self, rows: Rows, shape: Shape | None) -> Rows:
        """Return the rows that a pod of this shape fits on now; None: the unit runs for long, so all of its rows."""
        if shape is None:
            return rows
        if shape.id not in self._room:
            columns, n = self._cluster.columns, self._cluster.columns.n
            fits = ~self._none()
            for rid, amount in shape.requests:
                fits &= columns.used[rid, :n] + amount <= columns.alloc[rid, :n]
            self._room[shape.id] = fits
        return rows[self._room[shape.id][rows]]

    def allow(self, planned: PlannedUnit, settings: ReservationSettings) -> bool:
        """Count another promised start unless it would keep too many nodes empty. The first one is always allowed."""
        self._count_promised()
        shape = planned.shape if planned.span <= LONG_SECONDS else None
        rows, count = self._counted(planned.where.rows, shape), self._cluster.columns.count
        namespace = planned.namespace
        mine = self._of.get(namespace, self._none())
        fits = all(
            int(taken.sum()) + int((~taken[rows]).sum()) <= share * count
            for taken, share in (
                (self._all, settings.max_reserved_fraction),
                (mine, settings.max_reserved_fraction_per_namespace),
            )
        )
        if self._any and len(rows) and not fits:
            return False
        self._any = True
        self._count(namespace, rows)
        return True


def room_at(state: ClusterState, placeholders: Iterable[PodRecord], ended: Callable[[PodRecord], bool]) -> bool:
    """Return True if the nominated nodes have room for these placeholders after the pods for which `ended` is true."""
    columns = state.columns
    requests: dict[tuple[int, int], float] = {}  # (row, resource)
    for placeholder in placeholders:
        row = columns.row_of[placeholder.nominated]
        for rid, amount in placeholder.shape.requests:
            requests[row, rid] = requests.get((row, rid), 0.0) + amount
    for row in {row for row, _ in requests}:
        for record in columns.pods[row].values():
            for rid, amount in record.shape.requests if ended(record) else ():
                requests[row, rid] = requests.get((row, rid), 0.0) - amount
    return all(columns.used[rid, row] + more <= columns.alloc[rid, row] for (row, rid), more in requests.items())
