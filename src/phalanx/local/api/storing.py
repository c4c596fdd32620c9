"""Write objects to the store and read them: size limits, counts for quotas, and effects of definitions.

Everything that is written goes through here, whatever was done to it before; nothing here changes what it says, but for
its revision.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from phalanx.base.errors import RequestEntityTooLarge, ServiceUnavailable
from phalanx.local.api.context import Context
from phalanx.local.api.crd import FINALIZER as CLEANUP
from phalanx.local.api.crd import RESOURCE as DEFINITIONS
from phalanx.local.api.crd import CustomKinds
from phalanx.local.api.index import index_in
from phalanx.local.api.limit_ranges import TABLE as LIMIT_RANGES
from phalanx.local.api.quotas import TABLE as QUOTAS
from phalanx.local.api.quotas import Quotas
from phalanx.local.api.request import Request
from phalanx.local.api.rule_matching import MUTATING, MUTATING_BINDINGS, VALIDATING, VALIDATING_BINDINGS
from phalanx.local.api.view import decode, encode
from phalanx.local.api.writable import finalizers_of
from phalanx.local.store.contract import Entry, Key, RevisionMismatch
from phalanx.model.kinds import Json, Kind

OBJECT_BYTES = 3 << 19  # 1.5 MiB of JSON: what etcd takes in one request
LARGE_BODY = 64 << 10  # of a request whose size is checked before everything else
MARK_BYTES = 64 << 10  # more for an object that is being deleted: its deletion timestamp must fit
BEYOND = frozenset((MUTATING, VALIDATING, MUTATING_BINDINGS, VALIDATING_BINDINGS, LIMIT_RANGES, QUOTAS))
_DURABLE_POLL = 0.001  # seconds, about the time a commit takes


class Storing:
    def __init__(self, ctx: Context, custom: CustomKinds, quotas: Quotas) -> None:
        self._registry = ctx.registry
        self._store = ctx.store
        self._custom = custom
        self._quotas = quotas
        # Whether objects that admission reads exist or existed: most clusters have none.
        self.beyond = any(ctx.store.list(table) for table in BEYOND)

    async def durable(self, entry: Entry) -> None:
        """Wait until a state we are about to vouch for is on the disk; RevisionMismatch when it never gets there.

        Only a write that changes nothing right behind one that is still under way comes here and finds it is not.
        """
        while self._store.revision < entry.revision:
            if self._store.latest(entry.key) is not entry:
                raise RevisionMismatch(entry.key, self._store.latest(entry.key))
            await asyncio.sleep(_DURABLE_POLL)

    async def put(self, kind: Kind, key: Key, obj: Json, expect: int) -> Entry:
        """Store an object; returns when the write is durable."""
        before = self._store.latest(key) if expect else None
        size = len(before.value) if before is not None else 0

        def build(revision: int) -> bytes:
            value = made(revision)
            if len(value) > size:
                self._check_growth(kind, key, obj, len(value))
            return value

        made = _builder(obj)
        if key[0] in BEYOND:
            self.beyond = True
        if self.beyond:
            entry = await self._put_counted(key, obj, build, expect)
        else:
            entry = await self._store.put(key, build, expect, index_in(obj))
        self._custom.changed(key, obj)
        return entry

    async def _put_counted(self, key: Key, obj: Json, build: Callable[[int], bytes], expect: int) -> Entry:
        """Store an object and count it for quotas while it is written.

        It counts before it is on the disk, and not if it never gets there.
        """
        self._quotas.note(key, obj)
        try:
            entry = await self._store.put(key, build, expect)
        except BaseException:
            stands = self._store.latest(key)
            self._quotas.note(key, decode(stands.value) if stands is not None else None)
            raise
        self._quotas.note(key, obj)
        return entry

    def _check_growth(self, kind: Kind, key: Key, obj: Json, size: int) -> None:
        """Check the size of an object and the free space of the disk.

        An object that is terminating may always be marked so; everything else has limits.
        """
        terminating = bool(obj["metadata"].get("deletionTimestamp"))
        if size > OBJECT_BYTES + (MARK_BYTES if terminating else 0):
            raise _too_large(kind, key[2], size)
        alarm = "" if terminating or kind.plural == "leases" else self._store.alarm()
        if alarm:
            # Without Retry-After: waiting does not free a full disk, and kubectl would wait without a message.
            raise ServiceUnavailable(
                f'{kind.plural} "{key[2]}" was not stored: {alarm}. Only deletions and what takes no more room than '
                "before are stored until there is some: free space on that disk, or delete objects"
            )

    async def remove(self, kind: Kind, key: Key, obj: Json, expect: int) -> Entry:
        """Delete an object; its last state is sent with the revision of the deletion."""
        entry = await self._store.delete(key, _builder(obj), expect)
        self._quotas.note(key, None)
        self._custom.removed(key, obj)
        if key[0] == DEFINITIONS:
            await self._settle_definitions(obj["spec"]["group"])
        if self._custom.terminating(key[0]) is not None:
            await self.finish_definition(key[0])
        return entry

    async def _settle_definitions(self, group: str) -> None:
        """Settle the definitions of a group that waited for names which are free now."""
        kind = self._registry.by_storage_key(DEFINITIONS)
        assert kind is not None
        for entry in list(self._store.list(DEFINITIONS)):
            latest = self._store.latest(entry.key)
            if latest is None:
                continue
            obj: Json = decode(latest.value)
            if obj["spec"]["group"] == group and self._custom.recheck_names(obj):
                try:
                    await self.put(kind, latest.key, obj, latest.revision)
                except RevisionMismatch:
                    continue  # settled by the writer

    async def finish_definition(self, name: str) -> None:
        """Remove a definition that is being deleted once its last object is gone."""
        key = (DEFINITIONS, "", name)
        kind = self._registry.by_storage_key(DEFINITIONS)
        entry = self._store.latest(key)
        if entry is None or kind is None or self._store.list(name):
            return
        obj: Json = decode(entry.value)
        finalizers = [held for held in finalizers_of(obj) if held != CLEANUP]
        obj["metadata"]["finalizers"] = finalizers
        if not obj["metadata"].get("deletionTimestamp"):
            return
        try:
            if finalizers:
                await self.put(kind, key, obj, entry.revision)
            else:
                await self.remove(kind, key, obj, entry.revision)
        except RevisionMismatch:
            await self.finish_definition(name)


def check_size(request: Request, name: str, obj: Json) -> None:
    """Refuse an object that is already too large, before more time is spent on it."""
    if len(request.body) > LARGE_BODY and (size := len(encode(obj))) > OBJECT_BYTES:
        raise _too_large(request.kind, name, size)


def _too_large(kind: Kind, name: str, size: int) -> RequestEntityTooLarge:
    return RequestEntityTooLarge(
        f'{kind.plural} "{name}" would take {size} bytes, and an object may take {OBJECT_BYTES}: '
        "keep less in it, or spread it over several"
    )


def _builder(obj: Json) -> Callable[[int], bytes]:
    def build(revision: int) -> bytes:
        obj["metadata"]["resourceVersion"] = str(revision)
        return encode(obj)

    return build
