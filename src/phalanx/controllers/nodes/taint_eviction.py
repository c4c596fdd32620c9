"""Evict pods whose node is gone or has a NoExecute taint that they do not tolerate, or tolerate for a limited time.

A deleted pod that never got a node and is held by a finalizer becomes Failed, as by the pod garbage collector of
Kubernetes: no kubelet will report its end, and a Job with a podFailurePolicy waits for that.

This controller deletes pods; owners recreate them elsewhere. The number of simultaneously drained nodes is not
limited: nodes of a local cluster fail because a user tests failures.
"""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.base import resources as r
from phalanx.base.clock import Clock, rfc3339
from phalanx.base.errors import Conflict, NotFound
from phalanx.base.well_known import DISRUPTION_TARGET, OUT_OF_SERVICE_TAINT
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import deleting
from phalanx.controllers.runtime.pods import condition, finished, ready
from phalanx.model.objects.cluster import Taint
from phalanx.model.objects.pod import Toleration
from phalanx.model.tolerations import NO_EXECUTE, tolerates

QUARANTINE = 5.0  # seconds a node must be missing before its pods are deleted


class TaintEviction(Controller):
    name = "leaving pods"
    workers = 16

    def __init__(self, caches: Caches, clock: Clock, events: Events) -> None:
        super().__init__()
        self._client, self._clock, self._events = caches.client, clock, events
        self._nodes = caches.of(r.NODES)
        self._pods = caches.of(r.PODS)
        self._pods.index("node", _node_of)
        self._since: dict[str, float] = {}  # pod uid -> when its toleration time began; monotonic
        self._missing: dict[str, float] = {}  # node -> since when it is missing; monotonic
        self._tainted_nodes: set[str] = set()  # nodes with a NoExecute taint
        self._nodes.on_change(self._node_changed)
        self._pods.on_change(self._pod_changed)

    def _node_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        name = key.name
        taints = _no_execute(new) if new is not None else []
        if new is not None and not taints and name not in self._tainted_nodes and name not in self._missing:
            return  # usual case: no taint
        if taints:
            self._tainted_nodes.add(name)
        else:
            self._tainted_nodes.discard(name)
        if new is not None:
            self._missing.pop(name, None)
        for pod in self._pods.by_index("node", name):
            self.queue.add(Key(pod["metadata"]["namespace"], pod["metadata"]["name"]))

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is None:
            if old is not None:
                self._since.pop(old["metadata"]["uid"], None)
            return
        where = _node_of(new)
        if not where and deleting(new) and not finished(new):
            self.queue.add(key)
        for name in where:
            if name in self._tainted_nodes or self._nodes.get("", name) is None:
                self.queue.add(key)

    async def reconcile(self, key: Key) -> None:
        pod = self._pods.get(*key)
        if pod is None:
            return
        where = _node_of(pod)
        node = self._nodes.get("", where[0]) if where else None
        try:
            if not where:
                await self._unscheduled(pod)
            elif node is None:
                await self._lost(key, pod, where[0])
            elif deleting(pod):
                await self._out_of_service(pod, node)
            else:
                await self._tainted(key, pod, node)
        except (NotFound, Conflict):
            return  # deleted, or replaced by a pod with the same name

    # ---- taints

    async def _tainted(self, key: Key, pod: Json, node: Json) -> None:
        if (condition(node, "Ready") or {"status": "True"}).get("status") != "True" and ready(pod):
            # The kubelet does not respond; if it does again, it corrects this.
            await self._report(pod, "Ready", "False", "NodeNotReady", "Node is not ready")
        uid = pod["metadata"]["uid"]
        seconds = stays(pod, _no_execute(node))
        if seconds is None:
            self._since.pop(uid, None)
            return
        since = self._since.setdefault(uid, self._clock.monotonic())
        left = since + seconds - self._clock.monotonic()
        if left > 0:
            self.queue.add_after(key, left)
            return
        text = f"Marking for deletion Pod {key}"
        self._events.normal(pod, "taint-eviction", "TaintManagerEviction", text)
        await self._mark(pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint")
        await self._client.delete(r.PODS, key.name, key.namespace, uid=uid)

    async def _out_of_service(self, pod: Json, node: Json) -> None:
        """Delete a pod of a node with the out-of-service taint: the node will not report its termination."""
        entry = condition(node, "Ready") or {}
        declared = any(
            taint.get("key") == OUT_OF_SERVICE_TAINT for taint in (node.get("spec") or {}).get("taints") or ()
        )
        if declared and entry.get("status") != "True":
            await self._remove(pod, "PodGC: node is out of service")

    async def _unscheduled(self, pod: Json) -> None:
        if deleting(pod) and not finished(pod):
            meta = pod["metadata"]
            body = {"metadata": {"uid": meta["uid"]}, "status": {"phase": "Failed"}}
            await self._client.patch(r.PODS, meta["name"], body, meta["namespace"], subresource="status")

    # ---- deleted nodes

    async def _lost(self, key: Key, pod: Json, name: str) -> None:
        since = self._missing.setdefault(name, self._clock.monotonic())
        left = since + QUARANTINE - self._clock.monotonic()
        if left > 0:
            self.queue.add_after(key, left)
            return
        try:
            await self._client.get(r.NODES, name)
        except NotFound:
            await self._remove(pod, "PodGC: node no longer exists")
        else:
            self.queue.add_after(key, 1.0)  # exists, but not in our cache yet

    async def _remove(self, pod: Json, message: str) -> None:
        """Delete the pod without a grace period: there is no kubelet to stop it."""
        meta = pod["metadata"]
        status: Json = {} if finished(pod) else {"phase": "Failed"}
        await self._mark(pod, "DeletionByPodGC", message, **status)
        await self._client.delete(r.PODS, meta["name"], meta["namespace"], grace_seconds=0, uid=meta["uid"])

    async def _mark(self, pod: Json, reason: str, message: str, **status: Any) -> None:
        if not finished(pod):
            await self._report(pod, DISRUPTION_TARGET, "True", reason, message, **status)

    async def _report(self, pod: Json, type_: str, value: str, reason: str, message: str, **status: Any) -> None:
        meta, now = pod["metadata"], rfc3339(self._clock.now())
        entry = {"type": type_, "status": value, "reason": reason, "message": message, "lastTransitionTime": now}
        body = {"metadata": {"uid": meta["uid"]}, "status": {**status, "conditions": [entry]}}
        await self._client.patch(
            r.PODS, meta["name"], body, meta["namespace"],
            patch_type="application/strategic-merge-patch+json", subresource="status",
        )  # fmt: skip


def stays(pod: Json, taints: list[Taint]) -> float | None:
    """Return how many seconds a pod may stay with these NoExecute taints; None: for ever."""
    if not taints:
        return None
    tolerations = msgspec.convert((pod.get("spec") or {}).get("tolerations") or [], list[Toleration])
    limits: list[float] = []
    for taint in taints:
        # the first of several matching tolerations counts, as upstream
        found = next((t for t in tolerations if tolerates(t, taint)), None)
        if found is None:
            return 0.0
        if found.toleration_seconds is not None:
            limits.append(max(0.0, float(found.toleration_seconds)))
    return min(limits, default=None)


def _no_execute(node: Json) -> list[Taint]:
    taints = msgspec.convert((node.get("spec") or {}).get("taints") or [], list[Taint])
    return [taint for taint in taints if taint.effect == NO_EXECUTE]


def _node_of(pod: Json) -> list[str]:
    """Cache index."""
    name = (pod.get("spec") or {}).get("nodeName")
    return [name] if name else []
