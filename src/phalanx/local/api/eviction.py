"""Eviction: a delete that respects PodDisruptionBudgets and gangs. The budget pays before the pod goes."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from phalanx.base.clock import rfc3339
from phalanx.base.errors import ApiProblem, BadRequest, Conflict, Forbidden, InternalError, NotFound, TooManyRequests
from phalanx.base.well_known import DISRUPTION_TARGET
from phalanx.local.api.binding import set_condition
from phalanx.local.api.change import Changes
from phalanx.local.api.delete import DeleteOptions, Deletes, options_from
from phalanx.local.api.gang_members import EvictedGang, GangMembers
from phalanx.local.api.options import write_options
from phalanx.local.api.problems import conflict, not_found
from phalanx.local.api.request import Answer, Request
from phalanx.local.api.view import decode, encode
from phalanx.local.store.contract import Entry, RevisionMismatch
from phalanx.model.kinds import Json, Kind
from phalanx.model.objects import Pod
from phalanx.model.selectors import BadSelector, from_selector

BUDGETS = "poddisruptionbudgets.policy"
MAX_DISRUPTED_PODS = 2000
VIOLATES = "Cannot evict pod as it would violate the pod's disruption budget."
_DONE = encode({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})
_TRIES = 5


class EvictionHandler:
    def __init__(self, changes: Changes, deletes: Deletes) -> None:
        self._changes = changes
        self._deletes = deletes
        self._gangs = GangMembers(changes.store)

    async def evict(self, request: Request, eviction: Json) -> Answer:
        dry_run = write_options(request).dry_run
        options = options_from(eviction.get("deleteOptions") or {}, dry_run=dry_run)
        kind = request.kind
        entry = self._changes.latest(request)
        if entry is None:
            raise not_found(kind, request.name)
        pod: Json = decode(entry.value)
        gang = None if _beyond_budgets(pod) else self._gangs.of(msgspec.json.decode(entry.value, type=Pod))
        if not _beyond_budgets(pod) and (text := self._gangs.over_budget(msgspec.json.decode(entry.value, type=Pod))):
            raise TooManyRequests(f"{VIOLATES} {text}", retry_after=10, causes=_cause(text))
        if gang is not None and gang.others:
            await self._evict_gang(request, entry, pod, gang, options)
            others = f"{len(gang.others)} other pods go with {request.name}"
            text = f"{gang.group} is evicted as a whole ({gang.why}): {others}"
            return Answer(201, _DONE, warnings=(text,))
        if not _beyond_budgets(pod):
            options = await self._take_disruption(entry, pod, options)
        await self._delete(kind, request, options)
        return Answer(201, _DONE)

    async def _evict_gang(
        self, request: Request, entry: Entry, pod: Json, gang: EvictedGang, options: DeleteOptions
    ) -> None:
        """Evict all members of a gang or none: every budget must allow all of them."""
        members = [(entry, pod), *((other, decode(other.value)) for other in gang.others)]
        self._check_together(gang, [member for _, member in members])
        for latest, member in members:
            if not _beyond_budgets(member):
                await self._take_disruption(latest, member, options)
        await self._delete(request.kind, request, options)
        rest = DeleteOptions(dry_run=options.dry_run)
        for other in gang.others:
            try:
                await self._delete(request.kind, replace(request, name=other.key[2]), rest)
            except NotFound:
                continue  # deleted meanwhile

    def _check_together(self, gang: EvictedGang, pods: list[Json]) -> None:
        needed: dict[str, int] = {}
        allowed: dict[str, int] = {}
        for pod in pods:
            for budget in self._budgets(pod) if not _beyond_budgets(pod) else ():
                name = budget.key[2]
                needed[name] = needed.get(name, 0) + 1
                allowed[name] = int((decode(budget.value).get("status") or {}).get("disruptionsAllowed") or 0)
        for name, count in sorted(needed.items()):
            if allowed[name] < count:
                text = (
                    f"{gang.group} is evicted as a whole ({gang.why}): the disruption budget {name} allows"
                    f" {allowed[name]} disruptions, {count} are needed"
                )
                raise TooManyRequests(f"{VIOLATES} {text}", retry_after=10, causes=_cause(text))

    async def _take_disruption(self, entry: Entry, pod: Json, options: DeleteOptions) -> DeleteOptions:
        """Take a disruption from the budget of a pod; return the options with which it may be deleted."""
        budgets = self._budgets(pod)
        if len(budgets) > 1:
            raise InternalError(
                "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
                status_reason="InternalError",
            )
        if budgets and await self._take_from_budget(budgets[0], pod, options):
            return replace(options, revision=options.revision or str(entry.revision))
        return options

    def _budgets(self, pod: Json) -> list[Entry]:
        labels = pod["metadata"].get("labels") or {}
        found = []
        for entry in self._changes.store.list(BUDGETS, pod["metadata"]["namespace"]):
            selector: Any = (decode(entry.value).get("spec") or {}).get("selector")
            if selector is None:
                continue  # policy/v1: no selector selects nothing
            try:
                if from_selector(selector).matches(labels):
                    found.append(entry)
            except BadSelector:
                continue
        return found

    async def _take_from_budget(self, entry: Entry, pod: Json, options: DeleteOptions) -> bool:
        """Take one disruption from the budget.

        Return True if the budget did not have to allow one, provided that the pod stays as it is.
        """
        for _ in range(_TRIES):
            latest = self._changes.store.latest(entry.key)
            if latest is None:
                return False
            budget: Json = decode(latest.value)
            spec, status = budget.get("spec") or {}, budget.get("status") or {}
            if not _ready(pod):
                healthy, desired = status.get("currentHealthy") or 0, status.get("desiredHealthy") or 0
                if spec.get("unhealthyPodEvictionPolicy") == "AlwaysAllow" or healthy >= desired > 0:
                    return True
            _check_budget(budget, status)
            if options.dry_run:
                return False
            self._spend(budget, status, pod["metadata"]["name"])
            kind = self._changes.ctx.registry.by_storage_key(BUDGETS)
            assert kind is not None
            try:
                await self._changes.storing.put(kind, latest.key, budget, latest.revision)
            except RevisionMismatch:
                continue
            return False
        name = entry.key[2]
        raise ApiProblem(
            f'couldn\'t update PodDisruptionBudget "{name}" due to conflicts',
            http_code=504,
            status_reason="Timeout",
            retry_after=10,
        )

    def _spend(self, budget: Json, status: Json, pod: str) -> None:
        now = rfc3339(self._changes.ctx.clock.now())
        allowed = int(status.get("disruptionsAllowed") or 0) - 1
        budget["status"] = status = {**status, "disruptionsAllowed": allowed}
        status["disruptedPods"] = {**(status.get("disruptedPods") or {}), pod: now}
        if allowed == 0:
            conditions = [c for c in status.get("conditions") or [] if c.get("type") != "DisruptionAllowed"]
            conditions.append(
                {
                    "type": "DisruptionAllowed",
                    "status": "False",
                    "reason": "InsufficientPods",
                    "message": "",
                    "lastTransitionTime": now,
                    "observedGeneration": status.get("observedGeneration") or 0,
                }
            )
            status["conditions"] = conditions

    async def _delete(self, kind: Kind, request: Request, options: DeleteOptions) -> None:
        for _ in range(_TRIES):
            entry = self._changes.latest(request)
            if entry is None:
                raise not_found(kind, request.name)
            pod: Json = decode(entry.value)
            if options.revision and options.revision != str(entry.revision):
                raise conflict(kind, request.name, "the object might have been modified")
            if options.uid and options.uid != pod["metadata"].get("uid"):
                raise conflict(kind, request.name, "the object might have been deleted and then recreated")
            if not options.dry_run:
                now = rfc3339(self._changes.ctx.clock.now())
                set_condition(
                    pod.setdefault("status", {}),
                    DISRUPTION_TARGET,
                    "True",
                    now,
                    "EvictionByEvictionAPI",
                    "Eviction API: evicting",
                )
                try:
                    await self._changes.storing.put(kind, entry.key, pod, entry.revision)
                except RevisionMismatch:
                    continue
            try:
                await self._deletes.delete_object(kind, request.namespace, request.name, replace(options, revision=""))
            except Conflict as problem:
                if options.revision:
                    raise TooManyRequests(VIOLATES, retry_after=10) from problem
                raise
            return
        raise BadRequest("the pod keeps changing; try again")


def _beyond_budgets(pod: Json) -> bool:
    """Return True if budgets do not count the pod: it runs nothing, or is being deleted."""
    phase = (pod.get("status") or {}).get("phase") or "Pending"
    return phase in ("Pending", "Succeeded", "Failed") or bool(pod["metadata"].get("deletionTimestamp"))


def _ready(pod: Json) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c.get("type") == "Ready" and c.get("status") == "True" for c in conditions)


def _cause(message: str) -> list[dict[str, str]]:
    return [{"reason": "DisruptionBudget", "message": message}]


def _check_budget(budget: Json, status: Json) -> None:
    metadata = budget["metadata"]
    name = metadata["name"]
    if (status.get("observedGeneration") or 0) < (metadata.get("generation") or 0):
        text = f"The disruption budget {name} is still being processed by the server."
        raise TooManyRequests(VIOLATES, retry_after=10, causes=_cause(text))
    allowed = status.get("disruptionsAllowed") or 0
    refusal = ""
    if allowed < 0:
        refusal, text = "pdb disruptions allowed is negative", "pdb disruptions allowed is negative"
    elif len(status.get("disruptedPods") or {}) > MAX_DISRUPTED_PODS:
        refusal = "DisruptedPods map too big - too many evictions not confirmed by PDB controller"
        text = "too many pending evictions not confirmed by PDB controller"
    if refusal:
        raise Forbidden(
            f'poddisruptionbudget.policy "{name}" is forbidden: {refusal}',
            name=name,
            group="policy",
            kind="poddisruptionbudget",
            causes=_cause(f"The disruption budget {name} does not allow evicting pods currently: {text}"),
        )
    if allowed == 0:
        raise TooManyRequests(VIOLATES, causes=_cause(_why_not(name, status)))


def _why_not(name: str, status: Json) -> str:
    condition: Json = next((c for c in status.get("conditions") or [] if c.get("type") == "DisruptionAllowed"), {})
    problem = condition.get("message") if condition.get("status") == "False" else ""
    healthy, desired = status.get("currentHealthy") or 0, status.get("desiredHealthy") or 0
    if problem and condition.get("reason") == "SyncFailed":
        return f"The disruption budget {name} does not allow evicting pods currently because it failed sync: {problem}"
    if healthy <= desired:
        return f"The disruption budget {name} needs {desired} healthy pods and has {healthy} currently"
    if problem:
        reason = condition.get("reason")
        return f"The disruption budget {name} does not allow evicting pods currently ({reason}): {problem}"
    return f"The disruption budget {name} does not allow evicting pods currently"
