"""DaemonSet: one pod on every eligible node, pinned by node affinity so that the scheduler places it."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.base import resources as r
from phalanx.base.clock import Clock
from phalanx.base.errors import Forbidden, Invalid
from phalanx.base.well_known import REQUIRED_AFFINITY
from phalanx.controllers.runtime.claiming import Claims
from phalanx.controllers.runtime.controller import Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import deleting
from phalanx.controllers.runtime.pods import PodEvents, available_in, finished, from_template, ready
from phalanx.controllers.runtime.revisions import HASH_LABEL, Revisions, digest_of, template_data
from phalanx.controllers.runtime.status import gather_results, write_status
from phalanx.model.objects.cluster import Taint
from phalanx.model.objects.pod import Toleration
from phalanx.model.rules.assembly import scaled
from phalanx.model.selectors import node_selector
from phalanx.model.tolerations import untolerated

# A daemon runs on its node in any node state; upstream adds these tolerations to every daemon pod.
TOLERATIONS: tuple[Json, ...] = tuple(
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)


class DaemonSetController(Controller):
    name = "daemonset"

    def __init__(self, caches: Caches, clock: Clock, events: Events) -> None:
        super().__init__()
        self._announced = PodEvents(events, clock, self.name)
        self._clock = clock
        self._sets = caches.of(r.DAEMON_SETS)
        self._pods = caches.of(r.PODS)
        self._nodes = caches.of(r.NODES)
        self._revisions = Revisions(caches.of(r.CONTROLLER_REVISIONS), r.DAEMON_SETS)
        self._claims = Claims(self._pods, r.DAEMON_SETS)
        self._sets.index("namespace", lambda obj: [obj["metadata"]["namespace"]])
        self._sets.on_change(self.requeue)
        self.report_refusals(self._sets, events)
        self._pods.on_change(self.requeue_owner("DaemonSet"), of="DaemonSet")
        self._nodes.on_change(self._node_changed)

    def _node_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and old is not None and _relevant(new) == _relevant(old):
            return
        for owner in self._sets:
            self.queue.add(Key(owner["metadata"]["namespace"], owner["metadata"]["name"]))

    async def reconcile(self, key: Key) -> None:
        owner = self._sets.get(*key)
        if owner is None:
            return
        template = owner["spec"]["template"]
        labels = (template.get("metadata") or {}).get("labels") or {}
        digest = digest_of(await self._revisions.present(owner, template_data(template), labels))
        by_node: dict[str, list[Json]] = {}
        for pod in await self._claims.of(owner):
            by_node.setdefault(_node_of(pod), []).append(pod)
        wanted = {node["metadata"]["name"] for node in self._nodes if _should_run(owner, node)}
        if not deleting(owner):
            await self._sync_pods(owner, by_node, wanted, digest)
            by_node = {}
            for pod in self._pods.by_index("controller", owner["metadata"]["uid"]):
                by_node.setdefault(_node_of(pod), []).append(pod)
        await self._write_status(owner, by_node, wanted, digest)

    async def _sync_pods(self, owner: Json, by_node: dict[str, list[Json]], wanted: set[str], digest: str) -> None:
        leaving: list[Json] = []
        for node, pods in by_node.items():
            alive = [pod for pod in pods if not deleting(pod)]
            ended = [pod for pod in alive if finished(pod)]
            leaving += ended  # a daemon pod that ended is recreated
            alive = [pod for pod in alive if not finished(pod)]
            if node not in wanted:
                leaving += alive
            else:  # two on one node: the oldest stays
                leaving += sorted(alive, key=lambda p: (p["metadata"]["creationTimestamp"], p["metadata"]["name"]))[1:]
        missing = [node for node in sorted(wanted) if not by_node.get(node)]
        leaving += self._outdated(owner, by_node, wanted, digest)
        await gather_results(self._delete(pod) for pod in leaving)
        await gather_results(self._create(owner, node, digest) for node in missing)

    def _outdated(self, owner: Json, by_node: dict[str, list[Json]], wanted: set[str], digest: str) -> list[Json]:
        strategy = owner["spec"].get("updateStrategy") or {}
        if strategy.get("type", "RollingUpdate") != "RollingUpdate":
            return []
        limit = (strategy.get("rollingUpdate") or {}).get("maxUnavailable", 1)
        budget = max(1, scaled(limit, len(wanted), up=True))
        minimum = int(owner["spec"].get("minReadySeconds") or 0)
        unavailable = 0
        outdated_available: list[Json] = []
        outdated_unavailable: list[Json] = []
        for node in sorted(wanted):
            pods = [pod for pod in by_node.get(node, ()) if not finished(pod)]
            available = any(available_in(pod, minimum, self._clock.now()) == 0.0 and not deleting(pod) for pod in pods)
            unavailable += not available
            for pod in pods:
                if not deleting(pod) and pod["metadata"].get("labels", {}).get(HASH_LABEL) != digest:
                    (outdated_available if available else outdated_unavailable).append(pod)
        return outdated_unavailable + outdated_available[: max(0, budget - unavailable)]

    async def _create(self, owner: Json, node: str, digest: str) -> None:
        pod = from_template(owner["spec"]["template"], owner, r.DAEMON_SETS)
        pod["metadata"]["labels"][HASH_LABEL] = digest
        spec = pod["spec"]
        affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
        term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        affinity[REQUIRED_AFFINITY] = {"nodeSelectorTerms": [term]}
        spec["tolerations"] = [*(spec.get("tolerations") or ()), *TOLERATIONS]
        try:
            made = await self._pods.create(pod)
        except (Invalid, Forbidden) as problem:
            self._announced.failed(owner, problem)
            raise
        self._announced.created(made)

    async def _delete(self, pod: Json) -> None:
        if await self._pods.delete(pod):
            self._announced.deleted(pod)

    async def _write_status(self, owner: Json, by_node: dict[str, list[Json]], wanted: set[str], digest: str) -> None:
        minimum = int(owner["spec"].get("minReadySeconds") or 0)
        counts = dict.fromkeys(("scheduled", "ready", "available", "updated"), 0)
        for node in wanted:
            pods = [pod for pod in by_node.get(node, ()) if not deleting(pod) and not finished(pod)]
            if not pods:
                continue
            counts["scheduled"] += 1
            counts["ready"] += any(map(ready, pods))
            counts["available"] += any(available_in(pod, minimum, self._clock.now()) == 0.0 for pod in pods)
            counts["updated"] += any(pod["metadata"].get("labels", {}).get(HASH_LABEL) == digest for pod in pods)
        misplaced = sum(
            1 for node, pods in by_node.items() if node not in wanted and any(not deleting(p) for p in pods)
        )
        status = {
            "observedGeneration": owner["metadata"].get("generation", 0),
            "desiredNumberScheduled": len(wanted),
            "currentNumberScheduled": counts["scheduled"],
            "numberMisscheduled": misplaced,
            "numberReady": counts["ready"],
            "numberAvailable": counts["available"] or None,
            "numberUnavailable": len(wanted) - counts["available"] or None,
            "updatedNumberScheduled": counts["updated"] or None,
        }
        await write_status(self._sets, owner, status)
        if counts["updated"] == len(wanted) and not deleting(owner):
            live = {f"{owner['metadata']['name']}-{digest}"}
            await self._revisions.trim(owner, live, int(owner["spec"].get("revisionHistoryLimit", 10)))
        waits = [available_in(pod, minimum, self._clock.now()) for pods in by_node.values() for pod in pods if minimum]
        if soon := [wait for wait in waits if wait]:
            self.queue.add_after(Key(owner["metadata"]["namespace"], owner["metadata"]["name"]), min(soon))


def _relevant(node: Json) -> tuple[Any, ...]:
    spec = node.get("spec") or {}
    return node["metadata"].get("labels"), spec.get("taints"), spec.get("unschedulable")


def _node_of(pod: Json) -> str:
    """Return the node that a daemon pod is on or was created for."""
    spec = pod.get("spec") or {}
    if spec.get("nodeName"):
        return str(spec["nodeName"])
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED_AFFINITY) or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            if field.get("key") == "metadata.name" and field.get("values"):
                return str(field["values"][0])
    return ""


def _should_run(owner: Json, node: Json) -> bool:
    spec = owner["spec"]["template"].get("spec") or {}
    labels, name = node["metadata"].get("labels") or {}, node["metadata"]["name"]
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED_AFFINITY)
    if required is not None and not node_selector(required).matches(labels, name):
        return False
    tolerations = msgspec.convert([*(spec.get("tolerations") or ()), *TOLERATIONS], list[Toleration])
    taints = msgspec.convert((node.get("spec") or {}).get("taints") or [], list[Taint])
    return untolerated(tolerations, taints) is None
