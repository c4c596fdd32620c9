"""DisaggregatedSet: a LeaderWorkerSet for each role of each slice, rolled together, with Services and scalers.

A new revision is a new set of LeaderWorkerSets, which grow while those of older revisions shrink (`planner.py`). Every
step is derived from existing objects; one reconcile makes at most one step per slice.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec

from phalanx.base import resources as r
from phalanx.base.clock import Clock
from phalanx.base.errors import AlreadyExists, Forbidden, Invalid, NotFound
from phalanx.controllers.runtime.controller import Cache, Caches, Controller, Json, Key
from phalanx.controllers.runtime.events import Events
from phalanx.controllers.runtime.ownership import controlled_by, deleting, index_by_controller
from phalanx.controllers.runtime.status import conditions_of, set_condition, write_status
from phalanx.controllers.workloads.disaggregatedset import sets as s
from phalanx.controllers.workloads.disaggregatedset.planner import RoleLimits, Rollout, next_step
from phalanx.model.rules.assembly import scaled

NAME = "disaggregatedset"
Roles = dict[str, Json]  # LeaderWorkerSets of one revision by role


class DisaggregatedSetController(Controller):
    name = NAME

    def __init__(self, caches: Caches, clock: Clock, events: Events) -> None:
        super().__init__()
        self._client, self._clock, self._events = caches.client, clock, events
        self._owners = caches.of(r.DISAGGREGATED_SETS, optional=True)
        self._sets = caches.of(r.LEADER_WORKER_SETS, optional=True)
        self._scalers = caches.of(r.ROLE_SCALERS, optional=True)
        self._services = caches.of(r.SERVICES)
        self._owners.on_change(self.requeue)
        self.report_refusals(self._owners, events)
        for cache in (self._sets, self._scalers, self._services):
            cache.index("controller", index_by_controller, of_marks=True)
            cache.on_change(self.requeue_owner(r.DISAGGREGATED_SETS.kind), of=r.DISAGGREGATED_SETS.kind)

    async def reconcile(self, key: Key) -> None:
        owner = self._owners.get(*key)
        if owner is None or deleting(owner):
            return
        scalers = await self._keep_scalers(owner)
        await self._remove_slices(owner)
        try:
            for place in range(s.slices_of(owner)):
                await self._keep_slice(owner, place, scalers)
        except (Invalid, Forbidden) as problem:
            self._events.warning(owner, NAME, "FailedCreate", str(problem))
        await self._report(owner, scalers)

    def _owned(self, owner: Json, cache: Cache) -> list[Json]:
        return self._present(cache.by_index("controller", owner["metadata"]["uid"]))

    def _present(self, found: list[Json]) -> list[Json]:
        return [obj for obj in found if not deleting(obj)]

    # ---- scalers

    async def _keep_scalers(self, owner: Json) -> Roles:
        """Return the scalers of External roles; create missing ones."""
        external = [role["name"] for role in s.roles_of(owner) if s.is_external(role)]
        found: Roles = {}
        for scaler in self._owned(owner, self._scalers):
            role = (scaler["metadata"].get("labels") or {}).get(s.ROLE) or ""
            if role in external:
                found[role] = scaler
            else:
                await self._scalers.delete(scaler, "Background")
                text = f"Deleted scaler {scaler['metadata']['name']}: role {role} is not External"
                self._events.normal(owner, NAME, "ScalerDeleted", text)
        running: dict[str, int] = {}
        for lws in self._owned(owner, self._sets):
            role = (lws["metadata"].get("labels") or {}).get(s.ROLE) or ""
            running[role] = running.get(role, 0) + s.replicas_of(lws)
        for role in external:
            if role not in found:
                # 1 for a new role: autoscalers ignore a scale of 0
                made = await self._create(owner, self._scalers, s.scaler(owner, role, running.get(role, 1)))
                if made is not None:
                    found[role] = made
        return found

    # ---- slices

    async def _remove_slices(self, owner: Json) -> None:
        count = s.slices_of(owner)
        for cache in (self._sets, self._services):
            for obj in self._owned(owner, cache):
                place = (obj["metadata"].get("labels") or {}).get(s.SLICE) or "0"
                if place.isdecimal() and len(place) < 5 and int(place) >= count:
                    await cache.delete(obj, "Background")

    async def _keep_slice(self, owner: Json, place: int, scalers: Roles) -> None:
        revision = s.revision_of(owner)
        revisions = self._revisions(owner, place)
        for name in [name for name in revisions if name != revision]:
            if not any(map(s.replicas_of, revisions[name].values())):
                for lws in revisions.pop(name).values():
                    await self._sets.delete(lws, "Background")
                    text = f"Deleted drained LeaderWorkerSet {lws['metadata']['name']}"
                    self._events.normal(owner, NAME, "LWSDeleted", text)
        new = revisions.pop(revision, {})
        if revisions:
            await self._roll(owner, place, revision, new, revisions, scalers)
        else:
            for role in s.roles_of(owner):
                await self._keep_role(owner, place, revision, role, new.get(role["name"]), scalers)
        await self._serve(owner, place, revision)

    def _revisions(self, owner: Json, place: int) -> dict[str, Roles]:
        found: dict[str, Roles] = {}
        for lws in self._owned(owner, self._sets):
            labels = lws["metadata"].get("labels") or {}
            if (labels.get(s.SLICE) or "0") == str(place):
                found.setdefault(labels.get(s.REVISION) or "", {})[labels.get(s.ROLE) or ""] = lws
        return found

    async def _keep_role(
        self, owner: Json, place: int, revision: str, role: Json, lws: Json | None, scalers: Roles
    ) -> None:
        wanted = _target(role, scalers, s.replicas_of(lws) if lws is not None else 0)
        if lws is None:
            await self._create(owner, self._sets, s.leader_worker_set(owner, place, revision, role, wanted))
        elif s.replicas_of(lws) != wanted:
            await self._scale(owner, lws, wanted)

    # ---- rollout

    async def _roll(
        self, owner: Json, place: int, revision: str, new: Roles, old: dict[str, Roles], scalers: Roles
    ) -> None:
        """Make the next step of a rollout, when the replicas of the last step are ready."""
        roles = {role["name"]: role for role in s.roles_of(owner)}
        if any(name not in new for name in roles):
            await self._begin(owner, place, revision, new, old)
            return
        if any(s.replicas_of(lws) != int((lws.get("status") or {}).get("readyReplicas") or 0) for lws in new.values()):
            return  # their status requeues the set
        names = [*roles, *sorted({name for found in old.values() for name in found} - set(roles))]
        at = Rollout(
            initial=[sum(s.initial_of(found[name]) for found in old.values() if name in found) for name in names],
            old=[sum(s.replicas_of(found[name]) for found in old.values() if name in found) for name in names],
            new=[s.replicas_of(new[name]) if name in roles else 0 for name in names],
            target=[_rolled_target(roles[name], scalers, new[name]) if name in roles else 0 for name in names],
            limits=[_limits(roles.get(name), scalers) for name in names],
        )
        step = next_step(at)
        if step is None:
            return
        fewer, more = step
        for index, name in enumerate(names):
            if name in roles and more[index] > at.new[index]:
                await self._scale(owner, new[name], more[index])
        await self._shrink(owner, old, {name: at.old[index] - fewer[index] for index, name in enumerate(names)})

    async def _begin(self, owner: Json, place: int, revision: str, new: Roles, old: dict[str, Roles]) -> None:
        """Record the sizes of older revisions and create the new LeaderWorkerSets with 0 replicas."""
        self._events.normal(owner, NAME, "RollingUpdateStarted", f"Slice {place} is rolled to revision {revision}")
        for lws in [lws for roles in old.values() for lws in roles.values()]:
            if s.INITIAL not in (lws["metadata"].get("annotations") or {}):
                await self._patch(lws, {"metadata": {"annotations": {s.INITIAL: str(s.replicas_of(lws))}}})
        for role in s.roles_of(owner):
            if role["name"] not in new:
                await self._create(owner, self._sets, s.leader_worker_set(owner, place, revision, role, 0))

    async def _shrink(self, owner: Json, old: dict[str, Roles], budget: dict[str, int]) -> None:
        """Remove replicas from the newest older revision first; a revision that loses a role is removed completely.

        Of two revisions from the same second, the one with fewer ready replicas comes first.
        """

        def order(roles: Roles) -> tuple[str, int]:
            ready = sum(int((lws.get("status") or {}).get("readyReplicas") or 0) for lws in roles.values())
            return max(str(lws["metadata"]["creationTimestamp"]) for lws in roles.values()), -ready

        for roles in sorted(old.values(), key=order, reverse=True):
            taken = {name: min(budget.get(name, 0), s.replicas_of(lws)) for name, lws in roles.items()}
            left = {name: s.replicas_of(lws) - taken[name] for name, lws in roles.items()}
            if any(taken.values()) and not all(left.values()):
                left = dict.fromkeys(left, 0)
            for name, lws in roles.items():
                budget[name] = budget.get(name, 0) - taken[name]
                if left[name] != s.replicas_of(lws):
                    await self._scale(owner, lws, left[name])

    # ---- Services

    async def _serve(self, owner: Json, place: int, revision: str) -> None:
        """Create a Service per role of each revision that is ready in all roles, once the current one is."""
        names = [role["name"] for role in s.roles_of(owner)]
        revisions = self._revisions(owner, place)
        if not _ready(revisions.get(revision) or {}, names):
            return
        for name in names:
            await self._create(owner, self._services, s.service(owner, revisions[revision][name]))
        for known in self._owned(owner, self._services):
            labels = known["metadata"].get("labels") or {}
            own = labels.get(s.REVISION) or ""
            if (labels.get(s.SLICE) or "0") != str(place) or own == revision:
                continue
            if not _ready(revisions.get(own) or {}, names):
                await self._services.delete(known, "Background")

    # ---- status

    async def _report(self, owner: Json, scalers: Roles) -> None:
        revision, slices, generation = s.revision_of(owner), s.slices_of(owner), owner["metadata"].get("generation", 0)
        sets = self._owned(owner, self._sets)
        entries, available = [], True
        for role in s.roles_of(owner):
            mine = [lws for lws in sets if (lws["metadata"].get("labels") or {}).get(s.ROLE) == role["name"]]
            updated = [lws for lws in mine if lws["metadata"]["labels"].get(s.REVISION) == revision]
            counts = {
                "replicas": _total(mine, "replicas"),
                "readyReplicas": _total(mine, "readyReplicas"),
                "updatedReplicas": _total(updated, "updatedReplicas"),
            }
            entries.append({"name": role["name"], **counts})
            wanted = _target(role, scalers, -1)  # a role whose scaler is missing has no target
            available &= wanted >= 0 and all(count == wanted * slices for count in counts.values())
        conditions = conditions_of(owner)
        reason = "AllRolesReady" if available else "RolloutInProgress"
        text = "All roles have their replicas, ready and updated" if available else "Some roles are not complete yet"
        for type_, true in (("Available", available), ("Progressing", not available)):
            if true or any(entry["type"] == type_ for entry in conditions):
                status = "True" if true else "False"
                set_condition(conditions, type_, status, reason, text, self._clock, observedGeneration=generation)
        await write_status(
            self._owners,
            owner,
            {"observedGeneration": generation, "roleStatuses": entries, "conditions": conditions},
        )
        for name, scaler in scalers.items():
            counted = next((entry["replicas"] for entry in entries if entry["name"] == name), 0)
            await self._report_scaler(owner, name, scaler, counted)

    async def _report_scaler(self, owner: Json, role: str, scaler: Json, replicas: int) -> None:
        conditions, generation = conditions_of(scaler), scaler["metadata"].get("generation", 0)
        text = f"The scaler belongs to role {role}"
        set_condition(conditions, "Ready", "True", "Bound", text, self._clock, observedGeneration=generation)
        status = {
            "replicas": replicas,
            "selector": s.leader_selector(owner, role),
            "observedGeneration": generation,
            "conditions": conditions,
        }
        await write_status(self._scalers, scaler, status)

    # ---- writing

    async def _create(self, owner: Json, cache: Cache, body: Json) -> Json | None:
        """Return the object, created or found; None while its name belongs to another owner or a terminating object."""
        meta = body["metadata"]
        known = cache.get(meta["namespace"], meta["name"])
        if known is None:
            try:
                return await cache.create(body)
            except AlreadyExists:
                known = msgspec.json.decode(await self._client.get(cache.resource, meta["name"], meta["namespace"]))
        if controlled_by(known, owner["metadata"]["uid"]):
            return None if deleting(known) else known
        text = f"{cache.resource.kind} {meta['name']} belongs to another owner; delete or rename it"
        self._events.warning(owner, NAME, "NameConflict", text)
        return None

    async def _scale(self, owner: Json, lws: Json, replicas: int) -> None:
        before, name = s.replicas_of(lws), lws["metadata"]["name"]
        await self._patch(lws, {"spec": {"replicas": replicas}})
        reason = "ScalingUp" if replicas > before else "ScalingDown"
        self._events.normal(owner, NAME, reason, f"LeaderWorkerSet {name} goes from {before} to {replicas} replicas")

    async def _patch(self, lws: Json, patch: Json) -> None:
        with suppress(NotFound):
            await self._sets.patch(lws, patch)


def _target(role: Json, scalers: Roles, unknown: int) -> int:
    """Return the target replicas of a role in a slice; `unknown` for an External role without a scaler."""
    if not s.is_external(role):
        return s.replicas_of(role)
    scaler = scalers.get(role["name"])
    return int((scaler.get("spec") or {}).get("replicas") or 0) if scaler is not None else unknown


def _rolled_target(role: Json, scalers: Roles, lws: Json) -> int:
    """Return the target of a role during a rollout, in which an External role does not shrink."""
    target = _target(role, scalers, s.replicas_of(lws))
    return max(target, s.replicas_of(lws)) if s.is_external(role) else target


def _limits(role: Json | None, scalers: Roles) -> RoleLimits:
    strategy = ((role or {}).get("spec") or {}).get("rolloutStrategy") or {}
    rolling = strategy.get("rollingUpdateConfiguration")
    if role is None or rolling is None:
        return RoleLimits()
    replicas = _target(role, scalers, 0)
    surge = scaled(rolling.get("maxSurge") or 0, replicas, up=True)
    unavailable = scaled(rolling.get("maxUnavailable") or 0, replicas, up=False)
    return RoleLimits(surge, unavailable) if unavailable else RoleLimits(surge or 1, 0)


def _ready(roles: Roles, names: list[str]) -> bool:
    return all(int((roles.get(name, {}).get("status") or {}).get("readyReplicas") or 0) >= 1 for name in names)


def _total(sets: list[Json], field: str) -> int:
    return sum(int((lws.get("status") or {}).get(field) or 0) for lws in sets)
