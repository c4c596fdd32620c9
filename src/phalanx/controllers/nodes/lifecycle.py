"""Node lifecycle: turn node conditions and missed heartbeats into taints.

Only nodes that have reported a Ready condition, or renew a Lease, are monitored: a Node created through the API without
either is usable. The time since the last heartbeat is measured by our clock from its observation, as upstream does, so
that neither a restart nor clock skew makes a node unhealthy. Time in which this process was not responsive does not
count, so that a suspended or overloaded machine loses no node.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import msgspec

from phalanx.base import resources as r
from phalanx.base.client import PatchType
from phalanx.base.clock import Clock, rfc3339
from phalanx.base.errors import NotFound
from phalanx.base.tasks import run_all
from phalanx.base.well_known import NODE_LEASE_NAMESPACE, NOT_READY_TAINT, UNREACHABLE_TAINT, UNSCHEDULABLE_TAINT
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.pods import condition

# Measure how long this process was responsive; heartbeat timeouts ignore stalls.
#
# A process that was stopped, starved of CPU or busy for seconds receives no heartbeats meanwhile, and in a local
# cluster the senders are in the same process: a stall says nothing about the health of nodes. A late tick reveals a
# stall, and that time does not count.

TICK = 2.0  # seconds
MOST = 3 * TICK  # maximum counted between two ticks; longer than any clock step of a test


class Responsiveness:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ticked = clock.monotonic()
        self._counted = 0.0  # seconds counted up to the last tick

    def now(self) -> float:
        """Return monotonic seconds that exclude the time in which this process was not responsive."""
        return self._counted + min(self._clock.monotonic() - self._ticked, MOST)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._counted = self.now()
            self._ticked = self._clock.monotonic()


GRACE = 1.25  # multiple of the lease's duration: upstream waits 50 s for leases of 40 s
DEFAULT_DURATION = 40.0
# (condition, status) -> taint against new pods.
OF_CONDITION = {
    ("Ready", "False"): NOT_READY_TAINT,
    ("Ready", "Unknown"): UNREACHABLE_TAINT,
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
}
REPORTED = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")

TaintKey = tuple[str, str]  # (key, effect)


class Heartbeat(NamedTuple):
    """The last observed heartbeat of a node."""

    renewed: str | None  # renew time of its Lease
    ready: tuple[str | None, str | None]  # its Ready condition: status, heartbeat time
    when: float  # when we observed it, by `Responsiveness.now`


class NodeLifecycleController(Controller):
    name = "node lifecycle"
    workers = 8

    def __init__(self, caches: Caches, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._attention = Responsiveness(clock)
        self._nodes = caches.of(r.NODES)
        self._leases = caches.of(r.LEASES)
        self._heartbeats: dict[str, Heartbeat] = {}  # by node
        self._nodes.on_change(self._node_changed)
        self._leases.on_change(self._lease_changed)

    async def run(self) -> None:
        await run_all(((self.name, super().run()), ("attention to nodes", self._attention.run())))

    def _node_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is None:
            self._heartbeats.pop(key.name, None)
        else:
            self.queue.add(key)

    def _lease_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if key.namespace != NODE_LEASE_NAMESPACE or new is None:
            return
        node = Key("", key.name)
        self._last_heartbeat(node.name)
        if old is None:
            self.queue.add(node)  # from now on missing heartbeats count

    async def reconcile(self, key: Key) -> None:
        node = self._nodes.get(*key)
        if node is None:
            return
        try:
            await self._taint(await self._set_unknown(node))
        except NotFound:
            return

    # ---- heartbeats

    def _last_heartbeat(self, name: str) -> float:
        """Return when the node last sent a heartbeat: a Lease renewal, or a status update."""
        lease, node = self._leases.get(NODE_LEASE_NAMESPACE, name), self._nodes.get("", name)
        entry = condition(node, "Ready") if node is not None else None
        ready = (entry.get("status"), entry.get("lastHeartbeatTime")) if entry is not None else ("Unknown", None)
        renewed = ((lease or {}).get("spec") or {}).get("renewTime")
        known = self._heartbeats.get(name)
        when = self._attention.now()
        if known is not None and known.renewed == renewed and (known.ready == ready or ready[0] == "Unknown"):
            when = known.when  # Unknown is written by us and is no heartbeat
        self._heartbeats[name] = Heartbeat(renewed, ready, when)
        return when

    async def _set_unknown(self, node: Json) -> Json:
        """Set the conditions of a node that stopped renewing its Lease to Unknown."""
        name = node["metadata"]["name"]
        lease = self._leases.get(NODE_LEASE_NAMESPACE, name)
        if lease is None:
            return node
        duration = float((lease.get("spec") or {}).get("leaseDurationSeconds") or DEFAULT_DURATION)
        left = self._last_heartbeat(name) + duration * GRACE - self._attention.now()
        if left > 0:
            self.queue.add_after(Key("", name), left)
            return node
        now = rfc3339(self._clock.now())
        updates = [change for type_ in REPORTED if (change := _unknown(node, type_, now)) is not None]
        return await self._patch(node, {"status": {"conditions": updates}}, "status") if updates else node

    # ---- taints

    async def _taint(self, node: Json) -> None:
        taints: list[Json] = (node.get("spec") or {}).get("taints") or []
        wanted = wanted_taints(node)
        managed = _managed(node)
        kept = [t for t in taints if _key(t) not in managed or _key(t) in wanted]
        present = {_key(taint) for taint in kept}
        now = rfc3339(self._clock.now())
        added = [{"key": k, "effect": e, "timeAdded": now} for k, e in wanted if (k, e) not in present]
        if added or len(kept) != len(taints):
            await self._patch(node, {"spec": {"taints": [*kept, *added] or None}})

    async def _patch(self, node: Json, change: Json, subresource: str = "") -> Json:
        meta = node["metadata"]
        body = {**change, "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]}}
        # Conditions merge by type; taints merge by key only, which fails for one key with two effects.
        merging: PatchType = "application/strategic-merge-patch+json" if subresource else "application/merge-patch+json"
        answer: Json = msgspec.json.decode(
            await self._nodes.client.patch(r.NODES, meta["name"], body, patch_type=merging, subresource=subresource)
        )
        self._nodes.remember(answer)
        return answer


def wanted_taints(node: Json) -> list[TaintKey]:
    """Return the taints that follow from the node's state, in a stable order."""
    wanted = []
    for (type_, status), key in OF_CONDITION.items():
        entry = condition(node, type_)
        if entry is not None and entry.get("status") == status:
            wanted.append((key, "NoSchedule"))
            if type_ == "Ready":
                wanted.append((key, "NoExecute"))
    if (node.get("spec") or {}).get("unschedulable"):
        wanted.append((UNSCHEDULABLE_TAINT, "NoSchedule"))
    return wanted


def _managed(node: Json) -> set[TaintKey]:
    """Return the taints managed only by this controller: of reported conditions, and of cordoning."""
    managed = {(UNSCHEDULABLE_TAINT, "NoSchedule")}
    for (type_, _), key in OF_CONDITION.items():
        if condition(node, type_) is not None:
            managed.add((key, "NoSchedule"))
            if type_ == "Ready":
                managed.add((key, "NoExecute"))
    return managed


def _unknown(node: Json, type_: str, now: str) -> Json | None:
    """Return the Unknown condition of a node without heartbeats; None if it is set already."""
    entry = condition(node, type_)
    if entry is None:
        reason, message = "NodeStatusNeverUpdated", "Kubelet never posted node status."
    elif entry.get("status") == "Unknown":
        return None
    else:
        reason, message = "NodeStatusUnknown", "Kubelet stopped posting node status."
    return {"type": type_, "status": "Unknown", "reason": reason, "message": message, "lastTransitionTime": now}


def _key(taint: Json) -> TaintKey:
    return (str(taint.get("key")), str(taint.get("effect")))
