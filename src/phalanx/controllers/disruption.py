"""Compute PodDisruptionBudget status: how many more pods may be disrupted now.

Rules of upstream: `minAvailable` as a number counts matching pods; percentages and `maxUnavailable` use the number of
expected pods, which is the sum of the scales of the pods' controllers.
"""

from __future__ import annotations

from phalanx.base import resources as r
from phalanx.base.clock import Clock, parse_rfc3339
from phalanx.controllers.runtime.cache import by_labels
from phalanx.controllers.runtime.controller import Cache, Caches, Controller, Json, Key
from phalanx.controllers.runtime.ownership import controller_of
from phalanx.controllers.runtime.pods import finished, ready
from phalanx.controllers.runtime.status import conditions_of, set_condition, write_status
from phalanx.controllers.workloads.registry import KINDS
from phalanx.model.rules.assembly import scaled
from phalanx.model.selectors import from_selector

DISRUPTED_TIMEOUT = 120.0  # seconds; an eviction without a deletion by then did not happen

SCALED = {kind.key: kind.resource for kind in KINDS if kind.scaled}


class NoScale(Exception):
    """A pod's controller has no scale, so the budget cannot be computed."""


class DisruptionController(Controller):
    name = "disruption"

    def __init__(self, caches: Caches, clock: Clock) -> None:
        super().__init__()
        self._clock = clock
        self._budgets = caches.of(r.DISRUPTION_BUDGETS)
        self._pods = caches.of(r.PODS)
        self._pods.index("labels", by_labels, of_marks=True)
        self._budgets.index("namespace", lambda budget: [budget["metadata"]["namespace"]])
        self._owners: dict[tuple[str, str], Cache] = {key: caches.of(resource) for key, resource in SCALED.items()}
        self._budgets.on_change(self.requeue)
        self._pods.on_change(self._pod_changed)
        for cache in self._owners.values():
            cache.on_change(self._owner_changed)

    def _pod_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        for budget in self._budgets.by_index("namespace", key.namespace):
            matcher = from_selector((budget.get("spec") or {}).get("selector"))
            if any(pod is not None and matcher.matches(pod["metadata"].get("labels")) for pod in (new, old)):
                self.queue.add(Key(key.namespace, budget["metadata"]["name"]))

    def _owner_changed(self, key: Key, new: Json | None, old: Json | None) -> None:
        if new is not None and old is not None and new["spec"].get("replicas") == old["spec"].get("replicas"):
            return
        for budget in self._budgets.by_index("namespace", key.namespace):
            self.queue.add(Key(key.namespace, budget["metadata"]["name"]))

    async def reconcile(self, key: Key) -> None:
        budget = self._budgets.get(*key)
        if budget is None:
            return
        matcher = from_selector(budget["spec"].get("selector"))
        pods = [pod for pod in self._pods.matching("labels", key.namespace, matcher) if not finished(pod)]
        conditions = conditions_of(budget)
        generation = budget["metadata"].get("generation", 0)
        try:
            expected, desired = self._wanted(budget["spec"], pods)
        except NoScale as problem:
            set_condition(
                conditions, "DisruptionAllowed", "False", "SyncFailed", str(problem), self._clock,
                observedGeneration=generation,
            )  # fmt: skip
            status = {**(budget.get("status") or {}), "disruptionsAllowed": 0, "conditions": conditions}
            await write_status(self._budgets, budget, {**status, "observedGeneration": generation})
            return
        disrupted, recheck = self._disrupted(budget, pods)
        healthy = sum(1 for pod in pods if self._counts(pod, disrupted))
        allowed = max(0, healthy - desired) if expected > 0 else 0
        reason = "SufficientPods" if allowed else "InsufficientPods"
        set_condition(
            conditions, "DisruptionAllowed", "True" if allowed else "False", reason, "", self._clock,
            observedGeneration=generation,
        )  # fmt: skip
        status = {
            "disruptionsAllowed": allowed,
            "currentHealthy": healthy,
            "desiredHealthy": desired,
            "expectedPods": expected,
            "observedGeneration": generation,
            "disruptedPods": disrupted or None,
            "conditions": conditions,
        }
        await write_status(self._budgets, budget, status)
        if recheck is not None:
            self.queue.add_after(key, recheck)

    @staticmethod
    def _counts(pod: Json, disrupted: dict[str, str]) -> bool:
        meta = pod["metadata"]
        return "deletionTimestamp" not in meta and meta["name"] not in disrupted and ready(pod)

    def _disrupted(self, budget: Json, pods: list[Json]) -> tuple[dict[str, str], float | None]:
        """Return the evictions in progress, with the time of the first timeout."""
        kept: dict[str, str] = {}
        recheck: float | None = None
        names = {pod["metadata"]["name"]: pod for pod in pods}
        for name, since in ((budget.get("status") or {}).get("disruptedPods") or {}).items():
            pod = names.get(name)
            if pod is None or "deletionTimestamp" in pod["metadata"]:
                continue
            left = parse_rfc3339(since) + DISRUPTED_TIMEOUT - self._clock.now()
            if left > 0:
                kept[name] = since
                recheck = left if recheck is None else min(recheck, left)
        return kept, recheck

    def _wanted(self, spec: Json, pods: list[Json]) -> tuple[int, int]:
        """Return (expected pods, pods that must stay healthy)."""
        if spec.get("maxUnavailable") is not None:
            expected = self._expected(pods)
            return expected, max(0, expected - scaled(spec["maxUnavailable"], expected, up=True))
        minimum = spec.get("minAvailable", 0)
        if isinstance(minimum, int):
            return len(pods), minimum
        expected = self._expected(pods)
        return expected, scaled(minimum, expected, up=True)

    def _cache_of(self, reference: Json) -> Cache | None:
        group = str(reference["apiVersion"]).rpartition("/")[0]
        return self._owners.get((group, reference["kind"]))

    def _expected(self, pods: list[Json]) -> int:
        scales: dict[str, int] = {}
        for pod in pods:
            reference = controller_of(pod)
            if reference is None:
                raise NoScale(f"found no controller for pod {pod['metadata']['name']!r}")
            cache = self._cache_of(reference)
            owner = cache.get(pod["metadata"]["namespace"], reference["name"]) if cache is not None else None
            if owner is None:
                raise NoScale(f"{reference['kind']} {reference['name']!r} does not implement the scale subresource")
            above = controller_of(owner)
            scaler = self._cache_of(above) if above is not None else None
            if above is not None and scaler is not None:
                # during a rollout, the ReplicaSets together have more replicas than their Deployment
                whole = scaler.get(pod["metadata"]["namespace"], above["name"])
                if whole is not None and whole["metadata"]["uid"] == above["uid"]:
                    reference, owner = above, whole
            scales[str(reference["uid"])] = int(owner["spec"].get("replicas", 1))
        return sum(scales.values())
