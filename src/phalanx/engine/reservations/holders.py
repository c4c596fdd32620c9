"""Which unit a nomination holds room for: a pod that exists, or a placeholder for pods that wait or are expected.

All reserved room is a nomination of a record, whatever it is reserved for. The key or the name of a placeholder says
what it stands for; no pod can have such a key or name.
"""

from __future__ import annotations

from collections.abc import Collection, Container
from typing import NamedTuple

from phalanx.engine.groups import expected_pods
from phalanx.engine.reservations.reservation import Reason
from phalanx.engine.state.records import Nominations, PodRecord
from phalanx.model.groups import POD_GROUP

WAITING_MARK = "/reserved"  # a placeholder for a pod that waits
DELAYED_MARK = "/promised"  # the same, only while a unit is tried that would delay the start of that pod
ADMITTED_MARK = "/admitted"  # a placeholder for a pod of an admitted workload, which does not exist yet


class Holder(NamedTuple):
    """The unit that room is reserved for."""

    reason: Reason
    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        what = "expected pods of " if self.reason is Reason.EXPECTED else ""
        return f"{what}{self.kind} {self.namespace}/{self.name}"


def holder_of(record: PodRecord) -> Holder:
    """Return the unit for which a nominated record holds room."""
    if expected_pods.is_expected(record):
        group = expected_pods.owner_of(record)
        return Holder(Reason.EXPECTED, group.kind, group.namespace, group.name)
    reason = Reason.NOMINATED
    if record.key.endswith((WAITING_MARK, DELAYED_MARK)):
        reason = Reason.PROMISED
    elif record.key.endswith(ADMITTED_MARK):
        reason = Reason.EXPECTED
    kind, name = (POD_GROUP, record.group) if record.group else ("Pod", record.name)
    return Holder(reason, kind, record.namespace, name)


def waiting_pod(record: PodRecord) -> str:
    """Return the key of the pod that a placeholder stands for; the record's own if it is none."""
    return record.key.removesuffix(WAITING_MARK)


def holders(
    nominations: Nominations,
    namespace: str,
    priority: int,
    nodes: Container[str] | None,
    own: Collection[str] = (),
) -> tuple[str, ...]:
    """Describe, for a unit of this namespace and priority, the units for which room is reserved against it.

    Every user who may read the unit reads this: units of other namespaces are counted and not named.
    `nodes`: consider only these nodes; None means all. `own`: names of the unit's own groups.
    """
    found: set[Holder] = set()
    for node, record in nominations.all():
        if record.priority < priority or (nodes is not None and node not in nodes):
            continue
        holder = holder_of(record)
        if holder.reason is Reason.NOMINATED or (holder.namespace == namespace and holder.name in own):
            continue
        found.add(holder)
    named = sorted(str(holder) for holder in found if holder.namespace == namespace)
    hidden = len(found) - len(named)
    if hidden:
        named.append(f"{hidden} unit{'s' if hidden > 1 else ''} of other namespaces")
    return tuple(named)
