"""How much may be reserved for waiting units: of the cluster, of a namespace, and within its ResourceQuotas."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.settings import ReservationSettings
from phalanx.engine.groups.quota_room import exceeded
from phalanx.engine.scheduling.attempt.queue_plan import PlannedUnit
from phalanx.engine.scheduling.commit.overtaking import namespace_of
from phalanx.engine.scheduling.queue.units import SchedulingUnit
from phalanx.engine.state.records import PodRecord

LONG_SECONDS = 86_400.0  # a unit that runs for longer counts with all its nodes
Rows = Iterable[tuple[PodRecord, int]]


def refusal_of(
    state: ClusterState, unit: SchedulingUnit, rows: Rows, held: Iterable[PodRecord], settings: ReservationSettings
) -> str:
    """Say why nothing more may be reserved for a unit; "" if it may be. `held`: placeholders of other units.

    The shares never forbid the first reservation: a large gang could wait for ever.
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


class PromiseLimits:
    """How many nodes promised starts may hold: those that they keep empty, and those that they keep for long."""

    def __init__(self, state: ClusterState, promised: Iterable[PlannedUnit | None]) -> None:
        self._cluster = state
        self._all: set[str] = set()
        self._of: dict[str, set[str]] = {}  # namespace -> nodes
        self._any = False
        for planned in promised:
            if planned is not None:
                self._count(planned)

    def _count(self, planned: PlannedUnit) -> None:
        counted = self._counted(planned)
        self._any = True
        self._all |= counted
        self._of.setdefault(namespace_of(planned.unit), set()).update(counted)

    def _counted(self, planned: PlannedUnit) -> set[str]:
        """Return the nodes on which one of its pods would fit now; all of them if it runs for long."""
        if planned.span > LONG_SECONDS:
            return set(planned.nodes)
        columns, found = self._cluster.columns, set()
        for name in planned.nodes:
            row = columns.row_of.get(name, -1)
            if row >= 0 and all(
                columns.used[rid, row] + amount <= columns.alloc[rid, row] for rid, amount in planned.requests
            ):
                found.add(name)
        return found

    def allow(self, planned: PlannedUnit, settings: ReservationSettings) -> bool:
        """Count another promised start, unless it would keep too many nodes empty. The first one is always allowed."""
        count, counted = self._cluster.columns.count, self._counted(planned)
        mine = self._of.get(namespace_of(planned.unit), set()) | counted
        fits = (
            len(self._all | counted) <= settings.max_reserved_fraction * count
            and len(mine) <= settings.max_reserved_fraction_per_namespace * count
        )
        if self._any and counted and not fits:
            return False
        self._count(planned)
        return True


def room_at(state: ClusterState, placeholders: Iterable[PodRecord], ended: Callable[[PodRecord], bool]) -> bool:
    """Return True if the nominated nodes have room for these placeholders once the pods for which `ended` is true are
    gone.
    """
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
