"""Call plugins for single pods: PreEnqueue before they are queued, Reserve and Permit once they have a node.

The scheduler calls them for pods that it assumes; queries call them inside a mark of the journal and rewind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from phalanx.engine.framework import Code, Status
from phalanx.engine.framework.adapters import failure_of
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.framework.profile import PodPlugins
from phalanx.engine.groups.trial import Assignment
from phalanx.engine.state.records import PodRecord

RefusedPod = tuple[PodRecord, Status]


def ask(plugin: Any, call: Any, *args: Any) -> Status | None:
    """Return a plugin's Status for one pod; None is success. An exception or a wrong type becomes an error Status."""
    try:
        status = call(*args)
    except BaseException as problem:
        text = str(failure_of(plugin, problem))
        return Status(Code.ERROR, (text,), plugin.name)
    if status is None:
        return None
    if not isinstance(status, Status):
        return Status(Code.ERROR, (f"plugin {plugin.name}: answered {type(status).__name__}",), plugin.name)
    return None if status.code is Code.SUCCESS else status


def gate_of(state: ClusterState, records: Iterable[PodRecord]) -> tuple[PodRecord, Status, str] | None:
    """Return the first pod that a PreEnqueue plugin holds, with the plugin's Status and name."""
    records = list(records)
    if not any(plugins.pre_enqueue for plugins in _plugins_of(state, records)):
        return None
    for record in records:
        for plugin in state.profiles[record.scheduler_name].for_shape(record.shape).pre_enqueue:
            status = ask(plugin, plugin.pre_enqueue, record)
            if status is not None:
                return record, status, plugin.name
    return None


def _plugins_of(state: ClusterState, records: Iterable[PodRecord]) -> list[PodPlugins]:
    """Return the plugins for each shape of these pods: most gangs have one shape and no plugin to call."""
    shapes = {record.shape: record.scheduler_name for record in records}
    return [state.profiles[name].for_shape(shape) for shape, name in shapes.items()]


def reserve(state: ClusterState, record: PodRecord, row: int) -> Status | None:
    """Return the first refusal; None: every plugin reserved."""
    for plugin in state.profiles[record.scheduler_name].for_shape(record.shape).reserve:
        status = ask(plugin, plugin.reserve, record, row)
        if status is not None:
            return status
    return None


def unreserve(state: ClusterState, record: PodRecord, row: int) -> None:
    profile = state.profiles.get(record.scheduler_name)
    for plugin in reversed(profile.reserve if profile else []):
        try:
            plugin.unreserve(record, row)
        except BaseException:  # a failing plugin must not keep the room of a released pod
            continue


def permit(state: ClusterState, record: PodRecord, row: int) -> Status | None:
    """Return the first plugin that rejects or waits; None if all permit."""
    for plugin in state.profiles[record.scheduler_name].for_shape(record.shape).permit:
        status = ask(plugin, plugin.permit, record, row)
        if status is not None:
            return status
    return None


def run_reserve_and_permit(
    state: ClusterState, assignment: Assignment, *, waiting_is_refusal: bool = True
) -> RefusedPod | None:
    """Call Reserve, then Permit, for every pod; return the first refused pod and the reason.

    Groups do not wait half-way: a plugin that is not ready refuses the attempt and is called again later.
    """
    plugins = _plugins_of(state, [record for record, _ in assignment])
    if any(each.reserve for each in plugins):
        for record, row in assignment:
            status = reserve(state, record, row)
            if status is not None:
                return record, status
    if any(each.permit for each in plugins):
        for record, row in assignment:
            status = permit(state, record, row)
            if status is not None and status.code is Code.WAIT:
                if not waiting_is_refusal:
                    continue
                text = f"{status.plugin or 'Permit'} is not ready: {status.message}"
                status = Status(Code.UNSCHEDULABLE, (text,))
            if status is not None:
                return record, status
    return None


def reserve_and_permit(state: ClusterState, assignment: Assignment, *, waiting_is_refusal: bool) -> RefusedPod | None:
    """Count the pods on their rows and call Reserve and Permit; a refusal undoes all of it."""
    state.columns.place_all(assignment)
    refused = run_reserve_and_permit(state, assignment, waiting_is_refusal=waiting_is_refusal)
    if refused is not None:
        release(state, assignment)
        state.columns.unplace_all([record for record, _ in assignment])
    return refused


def release(state: ClusterState, assignment: Assignment) -> None:
    """Call Unreserve at the end of a rehearsal, before the journal is rewound."""
    for record, row in reversed(assignment):
        unreserve(state, record, row)
