"""Create and update: the steps from a decoded object to the stored one, also for patches and subresources."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from phalanx.base.clock import rfc3339
from phalanx.base.errors import ApiProblem, BadRequest
from phalanx.local.api.admission import Admission
from phalanx.local.api.body import read_object
from phalanx.local.api.context import Context
from phalanx.local.api.crd import CustomKinds
from phalanx.local.api.custom_kind import schema_errors
from phalanx.local.api.expression_errors import expression_errors
from phalanx.local.api.gated_fields import FieldPath, event_of, exists, gated_fields, is_controlled, shown
from phalanx.local.api.managed_fields import FieldTracker
from phalanx.local.api.options import WriteOptions, write_options
from phalanx.local.api.problems import already_exists, conflict, invalid, modified, not_found
from phalanx.local.api.quotas import Quotas
from phalanx.local.api.request import Answer, Request
from phalanx.local.api.rule_matching import Admitted
from phalanx.local.api.storing import Storing, check_size
from phalanx.local.api.structural import set_defaults
from phalanx.local.api.type_checking import check_types
from phalanx.local.api.view import api_version, decode, encode, object_in
from phalanx.local.api.webhooks import Webhooks
from phalanx.local.api.writable import (
    bump_generation,
    date_taints,
    generated_name,
    keep_system_fields,
    metadata_of,
    released,
    stamp_new,
    within,
)
from phalanx.local.store.contract import Entry, Key, RevisionMismatch
from phalanx.model import names
from phalanx.model.annotation_values import unknown
from phalanx.model.fieldpath import invalid as invalid_value
from phalanx.model.gates import DROPPED
from phalanx.model.kinds import FieldError, Json, Kind, Version
from phalanx.model.rules import meta
from phalanx.model.zero_values import fill

HOOKED = frozenset(
    ("", "status", "approval", "resize", "ephemeralcontainers")
)  # subresources that have the kind of their object
_GENERATE_TRIES = 8
_CONFLICT_TRIES = 5

Validate = Callable[[Json, Json], list[FieldError]]
Mutate = Callable[
    [Json], Json | Awaitable[Json]
]  # the stored object in the client's version (a private copy) -> what it shall become


class Changes:
    """The pipeline. One instance per server."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        self.store = ctx.store
        self.fields = FieldTracker()
        self.admission = Admission(ctx)
        self.webhooks = Webhooks(ctx)
        self.quotas = Quotas(ctx)
        self.custom = CustomKinds(ctx)
        self.storing = Storing(ctx, self.custom, self.quotas)

    # -- create -------------------------------------------------------------------------------------------------

    async def create(self, request: Request) -> Answer:
        options = write_options(request)
        body = read_object(request, options)
        asked = gated_fields(body.obj)
        obj, entry = await self.create_object(request, options, body.obj)
        warnings = body.warnings + self.warnings(request, obj) + await self.dropped(request, asked, obj, entry)
        warnings += tuple(unknown(obj["metadata"].get("annotations")))
        return await self.answer(request, obj, entry, 201, warnings)

    def warnings(self, request: Request, obj: Json) -> tuple[str, ...]:
        """Return warnings about fields that have no effect here, or will be refused of objects made from this one."""
        kind = request.kind
        later = kind.template_errors(obj) if kind.template_errors is not None and not request.subresource else []
        return self.custom.warnings(kind, obj) + tuple(map(str, later))

    async def dropped(
        self, request: Request, asked: list[FieldPath], obj: Json, entry: Entry | None
    ) -> tuple[str, ...]:
        """Return warnings about the fields of a new object that a disabled feature gate dropped.

        An event on a stored object that has no controller says the same: the object must not silently differ from the
        request.
        """
        found = tuple(
            f"{shown(path)} is not stored: it needs the feature gate {DROPPED[str(path[-1])]}, which is off"
            for path in asked
            if not self.ctx.gates(DROPPED[str(path[-1])]) and not exists(obj, path)
        )
        events = self.ctx.registry.by_path("", "v1", "events")
        if not found or entry is None or events is None or is_controlled(obj):
            return found  # an object of a controller: the client that wrote its owner got the warning
        kind, now = request.kind, self.ctx.clock.now()
        event = event_of(kind.kind, api_version(kind.group, request.version.name), obj, found, now)
        stamp_new(events, event["metadata"], event["metadata"]["namespace"], rfc3339(now), self.ctx.rng)
        key = (events.storage_key, event["metadata"]["namespace"], event["metadata"]["name"])
        with suppress(RevisionMismatch):
            await self.storing.put(events, key, event, 0)
        return found

    async def create_object(
        self, request: Request, options: WriteOptions, obj: Json, *, applied: bool = False
    ) -> tuple[Json, Entry | None]:
        """Create an object; return it with its Entry (None on a dry run).

        `obj` is in the client's version and already checked against its schema.
        """
        kind, namespace = request.kind, request.namespace
        metadata = metadata_of(obj)
        if metadata.get("resourceVersion") and not applied:
            raise ApiProblem("resourceVersion should not be set on objects to be created")
        name = str(metadata.get("name") or "")
        self.custom.creating(kind)
        if kind.namespaced:
            self.admission.namespace_open(kind, namespace, name)
        now = rfc3339(self.ctx.clock.now())
        self._check_version(request, obj)
        obj = await self.to_storage(kind, request.version, obj)
        if kind.default is not None:
            kind.default(obj)
        date_taints(kind, obj, None, now)
        metadata = metadata_of(obj)
        check_size(request, name, obj)
        if not applied:
            self.fields.created(kind, obj, options.manager, now)
        generate = "" if name else str(metadata.get("generateName") or "")
        if generate:
            metadata["name"] = generated_name(generate, self.ctx.rng)
        self.admission.create(kind, obj, namespace, request.user)
        hooked = self.storing.beyond and self.webhooks.active
        if self.storing.beyond:
            self.admission.fill(kind, obj, namespace)
        if hooked:
            obj = await self.webhooks.mutate(Admitted(request, "CREATE", obj, None, options.dry_run))
            metadata = obj["metadata"]
        stamp_new(kind, metadata, namespace, now, self.ctx.rng)
        self._validate_new(request, obj, name, await self._as_spoken(request, obj))
        self.fill_zeros(kind, obj)
        if hooked:
            await self.webhooks.validate(Admitted(request, "CREATE", obj, None, options.dry_run))
        if self.storing.beyond:
            self.admission.within_limits(kind, obj, namespace)
            self.quotas.check(kind, obj, namespace)
        if generate:
            return await self._store_generated(kind, obj, namespace, generate, options)
        return await self._store_new(kind, obj, namespace, options)

    async def _as_spoken(self, request: Request, obj: Json) -> Json:
        """Return an object in the client's version, whose rules decide, if a conversion webhook makes it differ."""
        return await self.in_version(request, obj) if request.kind.convert is not None else obj

    def _validate_new(self, request: Request, obj: Json, name: str, seen: Json) -> None:
        """Validate an object that is to be created; `name`: as the client gave it, `seen`: in the client's version."""
        kind = request.kind
        if kind.prepare_create is not None:
            kind.prepare_create(obj)
        self.custom.prepare_create(kind, obj)
        check_size(request, name, obj)
        spoken = self.custom.rules_of(kind, request.version)
        if spoken is not None:
            errors = spoken.validate_create(seen)
        elif kind.validate_create is not None:
            errors = kind.validate_create(obj)
        else:
            errors = meta.on_create(obj, kind.validate_name or names.dns_subdomain, kind.namespaced)
        self.reject(kind, str(obj["metadata"].get("name") or ""), errors + expression_errors(kind, obj))
        check_types(self.ctx, kind, obj, None)

    async def _store_new(
        self, kind: Kind, obj: Json, namespace: str, options: WriteOptions
    ) -> tuple[Json, Entry | None]:
        name = obj["metadata"]["name"]
        key = (kind.storage_key, namespace, name)
        if self.store.latest(key) is not None:
            raise already_exists(kind, name)
        if options.dry_run:
            return obj, None
        try:
            return obj, await self.storing.put(kind, key, obj, 0)
        except RevisionMismatch:
            raise already_exists(kind, name) from None

    async def _store_generated(
        self, kind: Kind, obj: Json, namespace: str, prefix: str, options: WriteOptions
    ) -> tuple[Json, Entry | None]:
        metadata = obj["metadata"]
        for _ in range(_GENERATE_TRIES):
            key = (kind.storage_key, namespace, metadata["name"])
            if self.store.latest(key) is None:
                return obj, None if options.dry_run else await self.storing.put(kind, key, obj, 0)
            metadata["name"] = generated_name(prefix, self.ctx.rng)
        problem = already_exists(kind, metadata["name"])
        problem.message += ", the server was not able to generate a unique name for the object"
        raise problem

    # -- update -------------------------------------------------------------------------------------------------

    async def update(self, request: Request) -> Answer:
        options = write_options(request)
        body = read_object(request, options)
        kind = request.kind
        if request.subresource == "" and kind.create_on_update and self.latest(request) is None:
            self.check_preconditions(kind, request.name, {"uid": body.obj["metadata"].get("uid")}, {"uid": ""})
            body.obj["metadata"].pop("resourceVersion", None)
            obj, entry = await self.create_object(request, options, body.obj)
            return await self.answer(request, obj, entry, 201, body.warnings)
        metadata = body.obj["metadata"]
        if self.latest(request) is None:  # before errors in the body are reported, as everywhere
            raise not_found(kind, request.name)
        if not metadata.get("resourceVersion") and not kind.unconditional_update:
            self.reject(
                kind,
                request.name,
                [invalid_value("metadata.resourceVersion", 0, "must be specified for an update")],
            )
        pinned = bool(metadata.get("resourceVersion"))
        fresh = [body.obj]

        def replacement(_: Json) -> Json:
            # The pipeline edits in place, so another try starts from the bytes again.
            return fresh.pop() if fresh else read_object(request, options).obj

        obj, entry = await self.change(request, options, replacement, pinned=pinned)
        return await self.answer(request, obj, entry, 200, body.warnings + self.warnings(request, obj))

    async def change(
        self, request: Request, options: WriteOptions, mutate: Mutate, *, pinned: bool, applied: bool = False
    ) -> tuple[Json, Entry | None]:
        """Read an object, mutate it and write it.

        After a conflict it starts over, unless pinned to a revision.
        """
        for attempt in range(_CONFLICT_TRIES):
            entry = self.latest(request)
            if entry is None:
                raise not_found(request.kind, request.name)
            current = await self._current(request, entry)
            new = mutate(current)
            if isinstance(new, Awaitable):
                new = await new
            try:
                return await self._store_update(request, options, new, entry, applied=applied)
            except RevisionMismatch:
                if pinned or attempt == _CONFLICT_TRIES - 1:
                    raise modified(request.kind, request.name) from None
        raise modified(request.kind, request.name)

    async def _store_update(
        self, request: Request, options: WriteOptions, new: Json, entry: Entry, *, applied: bool
    ) -> tuple[Json, Entry | None]:
        kind, status = request.kind, request.subresource in ("status", "approval")
        part = kind.parts.get(request.subresource)
        old = await self.stored(kind, entry)
        self.check_preconditions(kind, request.name, metadata_of(new), old["metadata"])
        self._check_version(request, new)
        new = await self.to_storage(kind, request.version, new)
        if kind.default is not None:
            kind.default(new)
        now = rfc3339(self.ctx.clock.now())
        if not status:
            date_taints(kind, new, old, now)
        keep_system_fields(metadata_of(new), old["metadata"])
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        new = within(request, new, old)
        hooked = self.storing.beyond and request.subresource in HOOKED and self.webhooks.active
        if hooked:
            new = await self.webhooks.mutate(Admitted(request, "UPDATE", new, old, options.dry_run))
        if not applied:
            self.fields.updated(kind, new, old, options.manager, now, request.subresource)
        seen = await self._as_spoken(request, new), await self._as_spoken(request, old)
        if status:
            self._validate_status(request, new, old, seen)
        else:
            self.admission.update(kind, new, old, request.user)
            self._validate_changed(request, new, old, seen, part.errors if part is not None else None)
        self.fill_zeros(kind, new)
        if hooked:
            await self.webhooks.validate(Admitted(request, "UPDATE", new, old, options.dry_run))
        if self.storing.beyond and part is not None:
            self.admission.within_limits(kind, new, request.namespace)
        if self.storing.beyond and not status:
            self.quotas.check(kind, new, request.namespace)
        return await self._store_changed(kind, new, old, entry, options)

    async def _store_changed(
        self, kind: Kind, new: Json, old: Json, entry: Entry, options: WriteOptions
    ) -> tuple[Json, Entry | None]:
        if new == old:
            await self.storing.durable(entry)
            return old, entry
        if options.dry_run:
            return new, None
        if released(new, old):
            return new, await self.storing.remove(kind, entry.key, new, entry.revision)
        return new, await self.storing.put(kind, entry.key, new, entry.revision)

    def _validate_status(self, request: Request, new: Json, old: Json, seen: tuple[Json, Json]) -> None:
        kind, spoken = request.kind, self.custom.rules_of(request.kind, request.version)
        if kind.prepare_status is not None:
            kind.prepare_status(new, old)
        self.admission.status(kind, new, old)
        if spoken is not None:
            self._reject(request, spoken.validate_status(*seen))
        elif kind.validate_status is not None:
            self._reject(request, kind.validate_status(new, old))

    def _reject(self, request: Request, errors: list[FieldError]) -> None:
        """Raise if there are errors that refuse an update; warn of the others."""
        texts = [str(error) for error in errors if error.warns]
        request.warnings += tuple(text for text in dict.fromkeys(texts) if text not in request.warnings)
        self.reject(request.kind, request.name, [error for error in errors if not error.warns])

    def _validate_changed(
        self, request: Request, new: Json, old: Json, seen: tuple[Json, Json], of_part: Validate | None
    ) -> None:
        """Validate the update of an object.

        `seen`: new and old object in the client's version. `of_part`: the rules of a subresource that changes a part of
        the spec.
        """
        kind, spoken = request.kind, self.custom.rules_of(request.kind, request.version)
        if kind.prepare_update is not None:
            kind.prepare_update(new, old)
        self.custom.prepare_update(kind, new, old)
        bump_generation(kind, new, old)
        if spoken is not None and of_part is None:
            errors = spoken.validate_update(*seen)
        else:
            errors = (of_part or kind.validate_update or meta.on_update)(new, old)
        self._reject(request, errors + expression_errors(kind, new, old))
        check_types(self.ctx, kind, new, old)

    def check_preconditions(self, kind: Kind, name: str, metadata: Json, current: Json) -> None:
        uid = metadata.get("uid")
        if uid and uid != current.get("uid"):
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {current.get('uid')}"
            raise conflict(kind, name, why)
        revision = metadata.get("resourceVersion")
        if revision and revision != current.get("resourceVersion"):
            if not (isinstance(revision, str) and revision.isdecimal() and revision.isascii()):
                raise BadRequest(f"invalid resourceVersion {revision!r}: it must be a number the server gave out")
            if revision != "0":  # upstream reads 0 as "not given"
                raise modified(kind, name)

    # -- what is stored, and in which version ---------------------------------------------------------------------

    def key(self, request: Request) -> Key:
        return (request.kind.storage_key, request.namespace, request.name)

    def latest(self, request: Request) -> Entry | None:
        return self.store.latest((request.kind.storage_key, request.namespace, request.name))

    async def to_storage(self, kind: Kind, version: Version, obj: Json) -> Json:
        if kind.convert is not None:
            obj["apiVersion"], obj["kind"] = api_version(kind.group, version.name), kind.kind
            obj = await self.ctx.conversions.object(kind, kind.storage_version, obj)
        if version.to_storage is not None:
            obj = version.to_storage(obj)
        home = kind
        if kind.stored_as:
            home = self.ctx.registry.by_storage_key(kind.stored_as) or kind
        # In place: rules may have left a note on the object itself (see model.rules.contract.Viewed).
        obj["apiVersion"], obj["kind"] = api_version(home.group, home.storage_version), home.kind
        return obj

    async def _current(self, request: Request, entry: Entry) -> Json:
        kind, version, value = request.kind, request.version, entry.value
        if kind.convert is not None:
            (value,) = await self.ctx.conversions.values(kind, version.name, [value])
        return object_in(kind, version, value)

    async def stored(self, kind: Kind, entry: Entry) -> Json:
        """Return the object as it is stored.

        A custom resource gets the defaults that its schema has now, so that they do not count as changes.
        """
        homes = () if kind.stored_as else kind.versions
        complete = next((home.from_storage for home in homes if home.name == kind.storage_version), None)
        value = entry.value
        if kind.convert is not None:  # objects stored before the storage version changed
            (value,) = await self.ctx.conversions.values(kind, kind.storage_version, [value])
        obj: Json = decode(value)
        return obj if complete is None else complete(obj)

    def fill_zeros(self, kind: Kind, obj: Json) -> None:
        home = self.ctx.registry.by_storage_key(kind.stored_as) if kind.stored_as else kind
        if home is not None and home.zeros:
            fill(obj, home.zeros)

    def reject(self, kind: Kind, name: str, errors: list[FieldError]) -> None:
        if errors:
            raise invalid(kind, name, errors)

    def _check_version(self, request: Request, obj: Json) -> None:
        """Check an object against the schema of the client's version, before a webhook converts it.

        Errors are then reported in the fields of the client's version.
        """
        kind, version = request.kind, request.version
        if kind.convert is not None and version.openapi is not None and version.name != kind.storage_version:
            set_defaults(obj, version.openapi)
            self.reject(kind, str(metadata_of(obj).get("name") or ""), schema_errors(obj, version.openapi))

    async def in_version(self, request: Request, obj: Json) -> Json:
        """Convert an object that is not stored yet from the storage version to the request's version."""
        kind, version = request.kind, request.version
        if kind.convert is not None:
            return await self.ctx.conversions.object(kind, version.name, obj)
        return version.from_storage(obj) if version.from_storage is not None else obj

    async def answer(
        self, request: Request, obj: Json, entry: Entry | None, code: int, warnings: tuple[str, ...] = ()
    ) -> Answer:
        value = entry.value if entry is not None else encode(obj)
        kind, version = request.kind, request.version
        if version.from_storage is not None or version.name != kind.storage_version or kind.stored_as:
            if kind.convert is not None:
                (value,) = await self.ctx.conversions.values(kind, version.name, [value])
            value = encode(object_in(kind, version, value))
        return Answer(code, value, warnings=warnings)
