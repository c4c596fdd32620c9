"""Checks of the engine's state, for tests and simulations: tables are recomputed or compared with each other."""

from __future__ import annotations

import numpy as np

from phalanx.engine.preemption.victim_index import VictimIndex
from phalanx.engine.scheduling.lifecycle.members import root_key
from phalanx.engine.scheduling.queue.units import QueueName
from phalanx.engine.scheduling.scheduler import Scheduler
from phalanx.engine.state.records import PodState
from phalanx.engine.state.requests import offered
from phalanx.model.groups import WORKLOAD, Group, GroupKey, MemberState, PodKey
from phalanx.model.groups.group import member_state


def validate(scheduler: Scheduler) -> None:
    _columns_equal_rebuild(scheduler)
    _each_pending_pod_in_one_place(scheduler)
    _each_pod_in_its_state(scheduler)
    _no_overcommit(scheduler)
    _nominations(scheduler)
    _forest(scheduler)
    _evictions(scheduler)
    _groups(scheduler)
    _victim_index(scheduler)
    _searches(scheduler)
    scheduler.indexes.devices.validate()
    scheduler.history.validate()


def _columns_equal_rebuild(scheduler: Scheduler) -> None:
    columns = scheduler.cluster.columns
    assert not columns.journal.recording, "a trial was left open"
    used = np.zeros_like(columns.used)
    nonzero = np.zeros_like(columns.nonzero)
    for record in scheduler.pods.records.values():
        if record.row < 0:
            continue
        assert columns.names[record.row] == record.node_name, f"{record} is counted on {columns.names[record.row]}"
        assert columns.pods[record.row].get(record.key) is record, f"{record} is not among the pods of its row"
        for rid, amount in record.shape.requests:
            used[rid, record.row] += amount
        nonzero[:, record.row] += record.shape.nonzero
    assert (used == columns.used).all(), "requested differs from the sum over pods"
    assert (nonzero == columns.nonzero).all(), "non-zero requested differs from the sum over pods"
    assert sum(len(pods) for pods in columns.pods) == sum(r.row >= 0 for r in scheduler.pods.records.values())
    for row, node in enumerate(columns.nodes):
        assert columns.alive[row] == (node is not None)
        if node is None:
            assert not columns.pods[row], "pods on a free row"
            continue
        assert columns.row_of[node.metadata.name] == row
        for name, rid in columns.resources.items():
            assert columns.alloc[rid, row] == offered(name, node.status.allocatable.get(name)), f"allocatable {name}"
        for key, column in columns.labels.items():
            value = node.metadata.labels.get(key)
            assert column.ids[row] == (0 if value is None else column.id_of(value)), f"label {key} of {node}"
        assert columns.taint_sets[columns.taint_set[row]] == tuple(node.spec.taints or ())
    assert columns.count == len(columns.row_of) == int(columns.alive.sum())


def _each_pending_pod_in_one_place(scheduler: Scheduler) -> None:
    found: dict[str, QueueName] = {}
    members = scheduler.groups.members
    for root, place in scheduler.queue.places():
        assert root.queue_name is place, f"{root} was found in {place}"
        assert scheduler.queue.units.get(root.key) is root, f"{root} is not registered"
        for key in root.records:
            assert key not in found, f"{key} is in two places: {found[key]} and {place}"
            found[key] = place
    for key, record in scheduler.pods.records.items():
        if record.node_name:
            assert key not in found, f"{record} is queued although it has a node"
            pods_on_unknown_nodes = key in scheduler.pod_lifecycle.pods_on_unknown_nodes.get(record.node_name, {})
            assert (record.row >= 0) != pods_on_unknown_nodes, f"{record} is neither on a row nor waiting for its node"
        elif members.claims(record):
            assert members.queue_of(record) is not QueueName.NOWHERE, f"{record} is lost"
        else:
            assert key in found, f"{record} is lost"
    for key in found:
        assert key in scheduler.pods.records, f"{key} is queued but gone"


def _each_pod_in_its_state(scheduler: Scheduler) -> None:
    pod_lifecycle = scheduler.pod_lifecycle
    pod_lifecycle.illegal.validate()
    for key, record in scheduler.pods.records.items():
        state = record.state
        assert state is not PodState.GONE, f"{record} is GONE but still known"
        assert bool(record.node_name) == (state is not PodState.PENDING), f"{record} is {state.name}"
        assert (key in pod_lifecycle.unit_of) == record.assumed, (
            f"{record} is {state.name}: assumed pods, and only these, have a unit to return to"
        )
        if state is PodState.BINDING:
            assert record.bind, f"{record} is BINDING without a Bind decision"
        elif state is not PodState.BOUND:
            assert not record.bind, f"{record} is {state.name} with a Bind under way"
        held = pod_lifecycle.holding.get(key)
        assert (held is not None) == (state is PodState.ASSUMED), (
            f"{record} is {state.name}: assumed pods, and only these, are on hold"
        )
        assert held is None or held.record is record, f"{record} differs from its record on hold"
    for key in (*pod_lifecycle.holding, *pod_lifecycle.unit_of):
        assert key in scheduler.pods.records, f"{key} is on hold but deleted"
    for name, pods in pod_lifecycle.pods_on_unknown_nodes.items():
        assert pods and name not in scheduler.cluster.columns.row_of, f"pods wait for node {name}, which exists"
        assert all(scheduler.pods.records.get(key) is record for key, record in pods.items())


def _no_overcommit(scheduler: Scheduler) -> None:
    """Check that no node is over-committed by us.

    A node may hold too much only because of pods that we did not place or because it shrank: a pod that is still
    assumed was checked by us, so without it the node must have room for it.
    """
    columns = scheduler.cluster.columns
    for record in scheduler.pods.records.values():
        if record.assumed and record.row >= 0 and record.row not in scheduler.pod_lifecycle.externally_filled_rows:
            for rid, _ in record.shape.requests:
                over = columns.used[rid, record.row] > columns.alloc[rid, record.row]
                name = columns.resource_names[rid]
                assert not over, f"{record} over-commits {name} of {record.node_name}"


def _nominations(scheduler: Scheduler) -> None:
    reserved = {record.key: node for node, record in scheduler.cluster.nominations.all()}
    scheduler.groups.room.validate()
    scheduler.starts.validate()
    room, replacements = scheduler.groups.room, scheduler.maintenance.replacements
    placeholders = (
        *room.reservations,
        *replacements.records,
        *scheduler.starts.placeholders,
        *scheduler.pods.foreign.values(),
        *scheduler.places.placeholders,
    )
    expected_placements = {id(record) for record in placeholders}
    for node, record in scheduler.cluster.nominations.all():
        if id(record) in expected_placements:
            continue
        assert scheduler.pods.records.get(record.key) is record, f"{record} is nominated to {node} but deleted"
        assert record.state is PodState.PENDING, f"{record} has a node and is nominated to {node}"
    for key, record in scheduler.pods.records.items():
        if record.state is PodState.PENDING:
            assert record.nominated == reserved.get(key, ""), (
                f"{record} is not nominated to {record.nominated} in the columns"
            )


def _forest(scheduler: Scheduler) -> None:
    """Check that members have the state of their records, and that pending ones are in the unit of their tree."""
    members, forest = scheduler.groups.members, scheduler.cluster.forest
    seen: dict[GroupKey, Group] = {}
    for key, record in scheduler.pods.records.items():
        leaf = forest.leaf_of(PodKey(record.namespace, record.name))
        if leaf is None:
            continue
        group = forest.named(leaf)
        assert group is not None
        seen[leaf] = group
        member = group.members[PodKey(record.namespace, record.name)]
        if record.state is PodState.PENDING:
            assert key in members.waiting_pods.get(leaf, {}), f"{record} is pending but not in its group's list"
        placement = (record.node_name, record.state is PodState.CONFIRMED) if record.assumed else None
        uid = group.spec.uid if leaf.kind == WORKLOAD and group.spec is not None else ""
        ours = record.scheduler_name in scheduler.cluster.profiles
        expected, node = member_state(member.pod, placement, ours=ours, uid=uid)
        assert member.state is expected, f"{record} is {record.state.name}, its member {member.state.name}"
        assert member.node == node, f"{record} is on {member.node} for its group"
    for leaf, group in seen.items():
        tally = [0] * len(MemberState)
        for member in group.members.values():
            tally[member.state] += 1
        assert group.counts == tally, f"members of {leaf} by state"
    for leaf, pods in members.waiting_pods.items():
        assert pods, f"{leaf} has an empty list"
        for key, record in pods.items():
            assert scheduler.pods.records.get(key) is record, f"{key} is pending in {leaf} but deleted"
            assert record.state is PodState.PENDING, f"{record} is pending in {leaf} but has a node"
            assert forest.leaf_of(PodKey(record.namespace, record.name)) == leaf, (
                f"{record} is pending in the wrong group {leaf}"
            )


def _evictions(scheduler: Scheduler) -> None:
    plans = {key: root.plan for key, root in scheduler.queue.units.items() if root.plan is not None}
    for key, plan in plans.items():
        assert plan.victims, f"the plan of {key} has no victims"
        for victim, uid in plan.victims.items():
            record = scheduler.pods.records.get(victim)
            assert record is not None and record.uid == uid, f"{key} waits for {victim}, which is gone"


def _groups(scheduler: Scheduler) -> None:
    groups = scheduler.groups
    scheduler.unit_lifecycle.validate()
    if groups.busy:
        return  # noted changes are not handled yet
    for root in scheduler.queue.units.values():
        assert root.records, f"{root} has no pods"
    forest = scheduler.cluster.forest
    for head in forest.roots():
        group, key = forest.group(head), root_key(head)
        if group is not None and scheduler.unit_lifecycle.waiting(key) is None and forest.invalid(head) is None:
            state, found = scheduler.unit_lifecycle.of(key), groups.commits.state_of(group)
            assert state is found, f"{head} is {state.value} instead of {found.value}"


def _victim_index(scheduler: Scheduler) -> None:
    """Check that the incrementally updated victim index equals a rebuilt one."""
    kept, recomputed = scheduler.preemption.victim_index, VictimIndex(scheduler.cluster)
    kept.refresh()
    recomputed.refresh()
    assert {k: (u.priority, set(u.pods)) for k, u in kept.units.items()} == {
        k: (u.priority, set(u.pods)) for k, u in recomputed.units.items()
    }, "units that could be evicted"
    for key, unit in kept.units.items():
        assert abs(kept.lost(unit) - recomputed.lost(recomputed.units[key])) < 1e-3, f"work lost with {unit}"
    assert {row: {k: set(p) for k, p in here.items()} for row, here in kept.on_row.items()} == {
        row: {k: set(p) for k, p in here.items()} for row, here in recomputed.on_row.items()
    }, "units on rows"
    assert {row: set(pods) for row, pods in kept.leaving.items()} == {
        row: set(pods) for row, pods in recomputed.leaving.items()
    }, "terminating pods"


def _searches(scheduler: Scheduler) -> None:
    """Check that unfinished attempts belong to suspended units, and that units in a class wait for one of them."""
    for key, search in scheduler.searches.unfinished.items():
        assert search.unit.key == key
        assert not scheduler.cluster.columns.journal.recording
    scheduler.searches.validate()
    scheduler.queue.validate()
