"""The queue of an engine as plain values: pending units, their waiting time, and the reason in one sentence."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from phalanx.engine.engine import Engine
from phalanx.engine.explain.pending import PendingReasons
from phalanx.engine.explain.remedies import owner_of_pod
from phalanx.engine.groups.messages import owner_of
from phalanx.engine.scheduling.queue.units import SchedulingUnit
from phalanx.model.groups import Group, GroupKey
from phalanx.model.groups.keys import COMPOSITE, POD_GROUP, WORKLOAD
from phalanx.model.kinds import Json

MOST_QUEUED = 500  # listed units; counts are always complete
_ORDER = {"active": 0, "attempt": 0, "backoff": 1, "waiting": 2, "gated": 3}
GROUP_KINDS = {kind.lower(): kind for kind in (POD_GROUP, COMPOSITE, WORKLOAD)}


def text_of(key: GroupKey) -> str:
    return f"{key.kind.lower()}/{key.namespace}/{key.name}"


def key_of(text: str) -> GroupKey | None:
    """Return the group key of a text; None if it is not the key of a group."""
    parts = text.split("/", 2)
    if len(parts) != 3 or parts[0] not in GROUP_KINDS:
        return None
    return GroupKey(GROUP_KINDS[parts[0]], parts[1], parts[2])


def _key(unit: SchedulingUnit) -> str:
    """Return "kind/namespace/name" of what waits: the group itself while its parents are unknown."""
    return text_of(unit.group) if unit.group is not None else unit.key


def _namespace(unit: SchedulingUnit) -> str:
    return _key(unit).split("/", 2)[1]


class QueueView:
    def __init__(self, engine: Engine, now: Callable[[], float]) -> None:
        self._engine = engine
        self._now = now
        self._reasons = PendingReasons(engine.scheduler)

    def nodes_changed(self) -> None:
        self._reasons.forget()

    def waiting(self) -> Json:
        """Return the number of pending units and pods by state, waiting time, namespace and priority."""
        now, total, pods, since = self._now(), 0, 0, None
        counts: dict[str, int] = {}
        shares: dict[tuple[str, int], list[int]] = {}  # (namespace, priority) -> units, pods
        for unit, place in self._engine.queue.places():
            counts[place.value] = counts.get(place.value, 0) + 1
            total += 1
            pods += len(unit.records)
            since = unit.queued_at if since is None or unit.queued_at < since else since
            share = shares.setdefault((_namespace(unit), unit.priority), [0, 0])
            share[0] += 1
            share[1] += len(unit.records)
        oldest = round(max(0.0, now - since), 1) if since is not None else 0.0
        by = [[namespace, priority, *share] for (namespace, priority), share in sorted(shares.items())]
        return {"total": total, "pods": pods, "counts": counts, "oldest": oldest, "by": by}

    def units(self, namespace: str = "") -> Json:
        """Return pending units in queue order, up to a limit.

        namespace: list only its units and shares; other counts cover all.
        """
        entries = (
            (
                _ORDER.get(place.value, 2),
                unit.expiry if place.value == "backoff" else 0.0,
                -unit.priority,
                unit.queued_at,
                unit.order,
                unit.key,
                unit,
            )
            for unit, place in self._engine.queue.places()
            if not namespace or _namespace(unit) == namespace
        )
        first = heapq.nsmallest(MOST_QUEUED, entries, key=lambda entry: entry[:6])
        waiting = self.waiting()
        if namespace:
            waiting["by"] = [share for share in waiting["by"] if share[0] == namespace]
        return {"roots": [self._unit(entry[-1]) for entry in first], **waiting}

    def headline(self, text: str) -> str:
        """Return why the unit of a group is pending, as a sentence; "" if it is not pending."""
        key = key_of(text)
        unit = self._engine.groups.root_of(key) if key is not None else None
        return self._reasons.of(unit).headline if unit is not None and unit.records else ""

    def _unit(self, unit: SchedulingUnit) -> Json:
        _, namespace, name = _key(unit).split("/", 2)
        group = self._group(unit)
        reason = self._reasons.of(unit)
        spec = group.spec if group is not None else None
        message = self._message(unit)
        return {
            "key": _key(unit),
            "kind": unit.kind,
            "namespace": namespace,
            "name": name,
            "priority": unit.priority,
            "pods": len(unit.records),
            "of": self._size(unit, group),
            "placed": sum(leaf.placed for leaf in self._leaves(group)),
            "place": unit.queue_name.value,
            "attempts": unit.attempts,
            "asked": round(unit.queued_at, 1),
            "tried": reason.tried,
            "until": round(unit.expiry, 1) if unit.queue_name.value == "backoff" else 0,
            "reason": reason.reason,
            "words": reason.words,
            "headline": reason.headline,
            "overtaken": self._engine.starts.text(unit),
            "message": message,
            "workload": (spec.workload or "") if spec is not None else "",
            "owner": self._owner(unit, group),
        }

    def _group(self, unit: SchedulingUnit) -> Group | None:
        key = key_of(unit.key)
        return self._engine.groups.forest.group(key) if key is not None else None

    def _leaves(self, group: Group | None) -> Iterable[Group]:
        return self._engine.groups.forest.leaves(group.key) if group is not None else ()

    def _size(self, unit: SchedulingUnit, group: Group | None) -> int:
        """Return the number of the unit's pods, or its minimum if that is larger."""
        sizes = [max(leaf.known, leaf.spec.minimum if leaf.spec is not None else 0) for leaf in self._leaves(group)]
        return max(sum(sizes), len(unit.records))

    def owner(self, group: Group) -> str:
        """Return the workload of a group, such as "JobSet train"; "" if a user created the group and its pods."""
        return owner_of(self._engine.groups.forest, group)

    def _owner(self, unit: SchedulingUnit, group: Group | None) -> str:
        if group is not None:
            return self.owner(group)
        pod = unit.record.pod if unit.records else None
        return owner_of_pod(pod.metadata) if pod is not None else ""

    def _message(self, unit: SchedulingUnit) -> str:
        """Return the scheduler's message, as in the condition."""
        waits, key = unit.equivalence_class, key_of(unit.key)
        message = unit.gate[1] if unit.queue_name.value == "gated" else (waits.message if waits is not None else "")
        if key is not None:
            message = self._engine.groups.conditions.failure(key) or message
        elif len(unit.records) == 1:
            message = message or unit.record.last_message
        return message
