"""Report requests for groups that have no effect: a feature gate is off, or a Workload is about no such object."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from phalanx.base import resources as r
from phalanx.controllers.cluster_mode.linking import requests_gang
from phalanx.controllers.grouping.core import GroupingRefused
from phalanx.controllers.grouping.user_workload import generated
from phalanx.controllers.runtime.controller import MALFORMED, Cache, Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.groups import Groups
from phalanx.controllers.runtime.ownership import controller_of, deleting
from phalanx.controllers.workloads.kind import Local, WorkloadKind

PATIENCE = 5.0  # seconds in which the object, or PodGroups, that follow a Workload are created


def report_groups_off(local: Local, kinds: Iterable[WorkloadKind]) -> None:
    """Watch the kinds whose gates are off; report requests for groups as Events on the object."""

    def look(kind: WorkloadKind, note: str, key: Key, new: Json | None, old: Json | None) -> None:
        above = controller_of(new) if new is not None else None
        if new is None or (above is not None and above["kind"] != r.CRON_JOBS.kind):
            return
        changed = old is None or any(
            old["metadata"].get(field) != new["metadata"].get(field) for field in ("generation", "annotations")
        )
        if changed and _requested(kind, new):
            local.events.warning(new, "workload-gates", "APINotAvailable", note)

    for kind in kinds:
        off = [gate for gate in ("GenericWorkload", kind.gate) if gate and not local.gates(gate)]
        if kind.run is None or kind.reports_gates or not off:
            continue
        gates = " and ".join(off)
        note = f"Groups need the feature gate{'s' if off[1:] else ''} {gates}; its pods start one by one"
        local.caches.of(kind.resource, optional=True).on_change(partial(look, kind, note))


def _requested(kind: WorkloadKind, workload: Json) -> bool:
    try:
        return requests_gang(workload) and bool(kind.group(workload, ()))
    except (GroupingRefused, *MALFORMED):
        return True  # requested, and not possible or not readable yet


class IgnoredWorkloadsController(Controller):
    """Reports a user's Workload whose `controllerRef` names a missing object, or one of a kind without groups.

    The controllers of the other kinds report objects that request no group.
    """

    name = "ignored-workloads"

    def __init__(self, caches: Caches, groups: Groups, events: Events, kinds: Iterable[WorkloadKind]) -> None:
        super().__init__()
        self._groups, self._events, self._pods = groups, events, caches.of(r.PODS)
        self._kinds = {kind.key: kind for kind in kinds}
        self._owners: dict[tuple[str, str], Cache] = {}
        groups.workloads.on_change(self._workload_changed)
        for kind in self._kinds.values():
            cache = self._owners[kind.key] = caches.of(kind.resource, optional=True)
            cache.on_change(partial(self._owner_changed, kind))

    def _workload_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and (old is None or old["spec"] != new["spec"]) and _by_user(new):
            self.queue.add_after(key, PATIENCE)

    def _owner_changed(self, kind: WorkloadKind, key: Key, new: Json | None, old: Json | None) -> None:
        """Look again at the Workloads of an object of a kind without groups that was created."""
        if new is None or old is not None or kind.grouped:
            return
        about = {"apiVersion": kind.resource.api_version, "kind": kind.resource.kind, "metadata": new["metadata"]}
        for workload in self._groups.for_owner(about):
            self.queue.add_after(Key(key.namespace, workload["metadata"]["name"]), PATIENCE)

    async def reconcile(self, key: Key) -> None:
        workload = self._groups.workloads.get(*key)
        if workload is None or not _by_user(workload) or self._in_use(workload):
            return
        about = workload["spec"].get("controllerRef") or {}
        kind = self._kinds.get((str(about.get("apiGroup") or ""), str(about.get("kind"))))
        if kind is None:
            return  # the controller of another kind may read it
        what = f"{about['kind']} {about['name']}, which spec.controllerRef names,"
        if self._owners[kind.key].get(key.namespace, about["name"]) is None:
            note = f"{what} does not exist: create it, or delete the Workload"
        elif not kind.grouped:
            note = f"{what} gets no groups, like every {about['kind']}: delete the Workload"
        else:
            return
        self._events.warning(workload, self.name, "WorkloadIgnored", note)

    def _in_use(self, workload: Json) -> bool:
        """Return True if a PodGroup or a pod names the Workload."""
        meta = workload["metadata"]
        if self._groups.of_workload(meta["namespace"], meta["name"]):
            return True
        return any(
            (pod["spec"].get("workloadRef") or {}).get("name") == meta["name"]
            for pod in self._pods
            if pod["metadata"]["namespace"] == meta["namespace"]
        )


def _by_user(workload: Json) -> bool:
    return controller_of(workload) is None and not generated(workload) and not deleting(workload)
