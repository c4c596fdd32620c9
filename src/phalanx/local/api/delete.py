"""Delete: grace periods, finalizers, preconditions, propagation.

The collection of what a deleted object owned is not done here; the finalizers set here tell the collector what to do.
"""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace

from phalanx.base.clock import parse_rfc3339, rfc3339
from phalanx.base.errors import BadRequest, Conflict, NotFound
from phalanx.base.well_known import FOREGROUND_FINALIZER, ORPHAN_FINALIZER, PROTOBUF
from phalanx.local.api.change import Changes
from phalanx.local.api.crd import RESOURCE as DEFINITIONS
from phalanx.local.api.index import Selection
from phalanx.local.api.options import invalid_options, write_options
from phalanx.local.api.problems import conflict, modified, not_found
from phalanx.local.api.request import Answer, Request, parse_signed, query_flag
from phalanx.local.api.rule_matching import Admitted
from phalanx.local.api.view import api_version, decode, encode, item_of
from phalanx.local.store.contract import Entry, Key, RevisionMismatch
from phalanx.model.builtin import body_schema
from phalanx.model.decode import conform, media_type, parse
from phalanx.model.fieldpath import invalid, not_supported
from phalanx.model.kinds import FieldError, Json, Kind

_POLICIES = ("Background", "Foreground", "Orphan")
MOST_GRACE_SECONDS = (1 << 31) - 1
# Kinds whose DELETE answers with the object even when it is gone.
_RETURNS_OBJECT = frozenset(
    {
        "pods",
        "services",
        "serviceaccounts",
        "persistentvolumes",
        "persistentvolumeclaims",
        "resourcequotas",
        "podtemplates",
    }
)
# Kinds whose dependents stay unless the request says otherwise, as kubectl's always do.
_LEAVES_DEPENDENTS = frozenset({"replicationcontrollers", "jobs.batch"})
_ORPHANED_JOB = (
    "child pods are preserved by default when jobs are deleted; "
    "set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning"
)
_TRIES = 5
_BATCH = 256  # deletions at the same time


class DeleteOptions(msgspec.Struct, frozen=True):
    grace: int | None = None
    propagation: str = ""
    uid: str = ""
    revision: str = ""
    dry_run: bool = False


class Deletes:
    def __init__(self, changes: Changes) -> None:
        self._changes = changes

    async def delete(self, request: Request) -> Answer:
        options = read_options(request)
        if self._changes.webhooks.active:
            await self._ask_webhooks(request, self._changes.latest(request), options)
        obj, entry, gone = await self.delete_object(request.kind, request.namespace, request.name, options)
        if gone and request.kind.storage_key not in _RETURNS_OBJECT:
            status = success(request.kind, request.name, obj["metadata"].get("uid", ""))
            return Answer(200, encode(status), warnings=_warnings(request.kind, options))
        code = 202 if not gone and options.propagation == "Foreground" and "orphanDependents" in request.query else 200
        return await self._changes.answer(request, obj, entry, code, _warnings(request.kind, options))

    async def delete_collection(self, request: Request) -> Answer:
        options = read_options(request)
        kind = request.kind
        selection = Selection.of(kind, request.query)
        items: list[msgspec.Raw] = []
        item = item_of(kind, request.version)
        listed = self._changes.store.list(kind.storage_key, request.namespace)
        chosen = [entry for entry in listed if selection.matches(entry)]
        for start in range(0, len(chosen), _BATCH):
            batch = chosen[start : start + _BATCH]
            if self._changes.webhooks.active:
                for entry in batch:
                    one = replace(request, verb="delete", namespace=entry.key[1], name=entry.key[2])
                    await self._ask_webhooks(one, entry, options)
            gone = await asyncio.gather(*(self._delete_chosen(kind, entry, options) for entry in batch))
            values = [value for value in gone if value]
            if kind.convert is not None:
                values = await self._changes.ctx.conversions.values(kind, request.version.name, values)
            items += [msgspec.Raw(item(value)) for value in values]
        body = {
            "kind": f"{kind.kind}List",
            "apiVersion": api_version(kind.group, request.version.name),
            "metadata": {"resourceVersion": str(self._changes.store.revision)},
            "items": items,
        }
        return Answer(200, encode(body), warnings=_warnings(kind, options))

    async def _ask_webhooks(self, request: Request, entry: Entry | None, options: DeleteOptions) -> None:
        """Ask the webhooks about a deletion; they can only allow or refuse it."""
        if entry is not None:
            old: Json = decode(entry.value)
            await self._changes.webhooks.refuse_or_pass(Admitted(request, "DELETE", None, old, options.dry_run))

    async def _delete_chosen(self, kind: Kind, entry: Entry, options: DeleteOptions) -> bytes:
        """Delete one object of a collection; return empty if another client was quicker."""
        _, namespace, name = entry.key
        try:
            obj, stored, _ = await self.delete_object(kind, namespace, name, replace(options, uid=entry.index.uid))
        except (NotFound, Conflict):
            return b""
        return stored.value if stored is not None else encode(obj)

    async def delete_object(
        self, kind: Kind, namespace: str, name: str, options: DeleteOptions
    ) -> tuple[Json, Entry | None, bool]:
        """Delete an object; return its current state, its Entry (None on a dry run) and whether it is gone."""
        self._changes.admission.delete(kind, name)
        for _ in range(_TRIES):
            entry = self._changes.store.latest((kind.storage_key, namespace, name))
            if entry is None:
                raise not_found(kind, name)
            try:
                found = await self._delete_entry(kind, entry, options)
            except RevisionMismatch:
                continue
            if kind.storage_key == DEFINITIONS and not options.dry_run:
                await self._empty_definition(name)
            return found
        raise modified(kind, name)

    async def _empty_definition(self, name: str) -> None:
        """Delete the objects of a definition that is being deleted, then finish the definition."""
        kind = self._changes.custom.kind(name)
        if kind is not None:
            keys = [entry.key for entry in self._changes.store.list(kind.storage_key)]
            for start in range(0, len(keys), _BATCH):
                batch = keys[start : start + _BATCH]
                await asyncio.gather(*(self._delete_quietly(kind, key) for key in batch))
        await self._changes.storing.finish_definition(name)

    async def _delete_quietly(self, kind: Kind, key: Key) -> None:
        try:
            await self.delete_object(kind, key[1], key[2], DeleteOptions())
        except NotFound:
            return

    async def _delete_entry(self, kind: Kind, entry: Entry, options: DeleteOptions) -> tuple[Json, Entry | None, bool]:
        obj: Json = decode(entry.value)
        metadata: Json = obj["metadata"]
        _check_preconditions(kind, entry.key[2], metadata, options)
        now = self._changes.ctx.clock.now()
        grace = self._grace(kind, obj, options)
        before = decode(entry.value)
        set_finalizers(metadata, options.propagation or _usual_propagation(kind, metadata))
        terminating = bool(metadata.get("deletionTimestamp"))
        held = bool(metadata.get("finalizers")) or _namespace_held(kind, obj)
        if not held and grace == 0:
            if options.dry_run:
                return obj, None, True
            return obj, await self._remove(kind, entry, obj, now), True
        if not terminating:
            _mark(kind, obj, now, grace)
        elif kind.storage_key == "pods" or held:
            _shorten(metadata, grace, options)
        if obj == before:
            await self._changes.storing.durable(entry)
            return obj, entry, False
        if options.dry_run:
            return obj, None, False
        return obj, await self._changes.storing.put(kind, entry.key, obj, entry.revision), False

    async def _remove(self, kind: Kind, entry: Entry, obj: Json, now: float) -> Entry:
        """Remove an object that nothing holds.

        As in kube-apiserver, a pod is first stored with its deletionTimestamp and a grace period of 0, and then
        removed: controllers that watch for deletionTimestamp see every deletion, a forced one included.
        """
        metadata: Json = obj["metadata"]
        revision = entry.revision
        if kind.storage_key == "pods" and metadata.get("deletionGracePeriodSeconds") != 0:
            if metadata.get("deletionTimestamp"):
                _set_grace(metadata, 0)
            else:
                _mark(kind, obj, now, 0)
            revision = (await self._changes.storing.put(kind, entry.key, obj, revision)).revision
        return await self._changes.storing.remove(kind, entry.key, obj, revision)

    def _grace(self, kind: Kind, obj: Json, options: DeleteOptions) -> int:
        """Return the grace period in seconds.

        Only pods have one: their containers must be stopped first.
        """
        if kind.storage_key != "pods":
            return 0
        spec, status = obj.get("spec") or {}, obj.get("status") or {}
        if not spec.get("nodeName") or status.get("phase") in ("Succeeded", "Failed"):
            return 0
        metadata = obj["metadata"]
        if options.grace is not None:
            return options.grace if options.grace >= 0 else 1
        if metadata.get("deletionTimestamp"):
            return int(metadata.get("deletionGracePeriodSeconds") or 0)
        seconds = spec.get("terminationGracePeriodSeconds")
        if seconds is None:
            return 30
        return int(seconds) if seconds >= 0 else 1


def _mark(kind: Kind, obj: Json, now: float, grace: int) -> None:
    """Mark an object as terminating: `grace` seconds from now it should be gone."""
    metadata: Json = obj["metadata"]
    metadata["deletionTimestamp"] = rfc3339(now + grace)
    metadata["deletionGracePeriodSeconds"] = grace
    if metadata.get("generation"):
        metadata["generation"] += 1
    if kind.storage_key == "namespaces":
        obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}


def _shorten(metadata: Json, grace: int, options: DeleteOptions) -> None:
    """Let a second delete bring the end forward; it never puts it off."""
    there = int(metadata.get("deletionGracePeriodSeconds") or 0)
    if options.grace is None or grace >= there:
        return
    _set_grace(metadata, grace)


def _set_grace(metadata: Json, grace: int) -> None:
    """Replace the grace period of a terminating object; deletionTimestamp moves with it."""
    started = parse_rfc3339(metadata["deletionTimestamp"]) - int(metadata.get("deletionGracePeriodSeconds") or 0)
    metadata["deletionTimestamp"] = rfc3339(started + grace)
    metadata["deletionGracePeriodSeconds"] = grace


def _usual_propagation(kind: Kind, metadata: Json) -> str:
    """Return the default propagation policy: background, or Orphan for old kinds."""
    announced = {FOREGROUND_FINALIZER, ORPHAN_FINALIZER} & set(metadata.get("finalizers") or ())
    return "Orphan" if kind.storage_key in _LEAVES_DEPENDENTS and not announced else ""


def _warnings(kind: Kind, options: DeleteOptions) -> tuple[str, ...]:
    return (_ORPHANED_JOB,) if kind.storage_key == "jobs.batch" and not options.propagation else ()


def set_finalizers(metadata: Json, propagation: str) -> None:
    """Set the finalizer that tells the garbage collector how to treat the dependents."""
    if not propagation:
        return
    kept = [name for name in metadata.get("finalizers") or [] if name not in (FOREGROUND_FINALIZER, ORPHAN_FINALIZER)]
    if propagation == "Foreground":
        kept.append(FOREGROUND_FINALIZER)
    elif propagation == "Orphan":
        kept.append(ORPHAN_FINALIZER)
    if kept:
        metadata["finalizers"] = kept
    else:
        metadata.pop("finalizers", None)


def _namespace_held(kind: Kind, obj: Json) -> bool:
    return kind.storage_key == "namespaces" and bool((obj.get("spec") or {}).get("finalizers"))


def _check_preconditions(kind: Kind, name: str, metadata: Json, options: DeleteOptions) -> None:
    if options.uid and options.uid != metadata.get("uid"):
        why = (
            f"the UID in the precondition ({options.uid}) does not match the UID in record ({metadata.get('uid')}). "
            "The object might have been deleted and then recreated"
        )
        raise conflict(kind, name, why)
    if options.revision and options.revision != metadata.get("resourceVersion"):
        why = (
            f"the ResourceVersion in the precondition ({options.revision}) does not match the ResourceVersion in "
            f"record ({metadata.get('resourceVersion')}). The object might have been modified"
        )
        raise conflict(kind, name, why)


def success(kind: Kind, name: str, uid: str = "") -> Json:
    details = {"name": name, "group": kind.group, "kind": kind.plural, "uid": uid}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {key: value for key, value in details.items() if value},
    }


def read_options(request: Request) -> DeleteOptions:
    """Read the options from the body (DeleteOptions) or, without one, from the query."""
    dry_run = write_options(request).dry_run
    found: Json = {}
    if request.body.strip():
        content = request.content_type or "application/json"
        schema = body_schema("", "v1", "DeleteOptions")
        found, _ = parse(request.body, content, schema)
        if schema is not None and media_type(content) != PROTOBUF:
            conform(found, schema)
        kind = found.get("kind")
        if kind not in (None, "", "DeleteOptions", "Eviction"):
            raise BadRequest(f"the body of a delete must be DeleteOptions, found {kind}")
    else:
        found = _from_query(request)
    return options_from(found, dry_run=dry_run)


def _from_query(request: Request) -> Json:
    query = request.query
    found: Json = {}
    if query.get("gracePeriodSeconds"):
        found["gracePeriodSeconds"] = parse_signed(query, "gracePeriodSeconds")
    if query.get("propagationPolicy"):
        found["propagationPolicy"] = query["propagationPolicy"]
    if query.get("orphanDependents"):
        found["orphanDependents"] = query_flag(query, "orphanDependents")
    return found


def options_from(found: Json, *, dry_run: bool) -> DeleteOptions:
    errors: list[FieldError] = []
    propagation = found.get("propagationPolicy") or ""
    if propagation not in ("", *_POLICIES):
        errors.append(not_supported("propagationPolicy", propagation, (*_POLICIES, "nil")))
    if found.get("orphanDependents") is not None:
        if propagation:
            text = "orphanDependents and deletionPropagation cannot be both set"
            errors.append(invalid("propagationPolicy", propagation, text))
        propagation = "Orphan" if found["orphanDependents"] else "Background"
    grace = found.get("gracePeriodSeconds")
    if grace is not None and abs(grace) > MOST_GRACE_SECONDS:
        errors.append(invalid("gracePeriodSeconds", grace, f"must be less than or equal to {MOST_GRACE_SECONDS}"))
    listed = found.get("dryRun") or []
    if any(item != "All" for item in listed):
        errors.append(not_supported("dryRun", listed, ("All",)))
    if errors:
        raise invalid_options("DeleteOptions", errors)
    preconditions = found.get("preconditions") or {}
    return DeleteOptions(
        found.get("gracePeriodSeconds"),
        propagation,
        preconditions.get("uid") or "",
        preconditions.get("resourceVersion") or "",
        dry_run or bool(listed),
    )
