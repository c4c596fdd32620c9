"""Write the status of Workloads, WorkloadPolicies and groups, once per step."""

from __future__ import annotations

from phalanx.engine import decisions as d
from phalanx.engine.framework import Emit
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.groups.conditions import GroupConditions
from phalanx.engine.groups.health import GroupHealth
from phalanx.engine.groups.losses import Losses
from phalanx.engine.groups.policy_status import KIND as POLICY
from phalanx.engine.groups.policy_status import PolicyStatuses
from phalanx.engine.groups.reserved_room import ROOM_RESERVED, RoomConditions
from phalanx.engine.groups.restarts import RESTARTED
from phalanx.engine.groups.workload_status import WorkloadStatuses
from phalanx.model.groups import WORKLOAD, GroupKey
from phalanx.model.printing.groups import HEALTHY


class Statuses:
    def __init__(self, state: ClusterState, conditions: GroupConditions, losses: Losses, emit: Emit) -> None:
        self._forest = state.forest
        self.health = GroupHealth(state, conditions, losses, emit)
        self.room = RoomConditions(state.forest, emit)
        self.workloads = WorkloadStatuses(state.forest, self.health.state, emit)
        self.policies = PolicyStatuses(state.forest, conditions, state.gates, emit)

    def notify(self) -> None:
        """Write changed statuses at the end of a step."""
        changed = self._forest.take_changed()
        self.policies.notify()
        self.workloads.notify(self.health.notify(changed))

    def write_failed(self, write: d.SetGroupCondition) -> None:
        """Handle a failed write: the status is written again on the next occasion."""
        if write.kind == WORKLOAD:
            self.workloads.write_failed(write)
        elif write.kind == POLICY:
            self.policies.write_failed(write)
        elif write.type == HEALTHY:
            self.health.write_failed(GroupKey(write.kind, write.namespace, write.name))
        elif write.type == ROOM_RESERVED:
            self.room.write_failed(GroupKey(write.kind, write.namespace, write.name))
        elif write.type == RESTARTED:
            self.health.restarted.forget(GroupKey(write.kind, write.namespace, write.name))

    def rewrite(self, write: d.SetGroupCondition) -> None:
        """Write the status again in the next step."""
        if write.kind == WORKLOAD:
            self.workloads.rewrite((write.namespace, write.name))
        elif write.kind == POLICY:
            self.policies.rewrite((write.namespace, write.name))
        elif write.type == ROOM_RESERVED:
            self.room.touch(GroupKey(write.kind, write.namespace, write.name))
        else:
            self.health.touch(GroupKey(write.kind, write.namespace, write.name))
