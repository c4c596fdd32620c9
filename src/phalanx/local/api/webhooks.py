"""Admission webhooks: which of them a write concerns, what they are told, and what becomes of their answers.

Never called for their own configurations: whoever locked himself out could not undo it. `matchConditions` are CEL and
not evaluated: such a webhook is called for everything else that its configuration chooses.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from phalanx.base.errors import ApiProblem, BadRequest, InternalError, problem_from_status
from phalanx.base.ids import new_uid
from phalanx.local.api.context import Context
from phalanx.local.api.patch_json import json_patch
from phalanx.local.api.request import Request
from phalanx.local.api.view import api_version, decode, encode, object_in
from phalanx.local.api.webhook_calls import Caller, CallFailed, Target, response_of, target_of
from phalanx.local.store.contract import Entry
from phalanx.model.builtin import body_schema
from phalanx.model.decode import conform
from phalanx.model.kinds import SUBRESOURCE_KINDS, Json, Kind, Version
from phalanx.model.selectors import LabelMatcher, from_selector

GROUP = "admissionregistration.k8s.io"
MUTATING = f"mutatingwebhookconfigurations.{GROUP}"
VALIDATING = f"validatingwebhookconfigurations.{GROUP}"
_KEPT = ("name", "namespace", "uid", "creationTimestamp", "resourceVersion", "generation", "managedFields")


class Hook(msgspec.Struct, frozen=True):
    key: tuple[str, str, str]  # kind, configuration, name
    body: Json
    namespaces: LabelMatcher
    objects: LabelMatcher

    @property
    def name(self) -> str:
        return self.key[2]


class Admitted(msgspec.Struct):
    """One write on its way: what all webhooks are asked about."""

    request: Request
    operation: str  # CREATE, UPDATE, DELETE, CONNECT
    new: Json | None  # in the storage version
    old: Json | None
    dry_run: bool
    own: tuple[str, str, str] | None = None  # (group, version, kind) where a subresource speaks a kind of its own

    @property
    def name(self) -> str:
        return self.request.name or str(((self.new or {}).get("metadata") or {}).get("name") or "")


class Webhooks:
    def __init__(self, ctx: Context) -> None:
        self._ctx, self._store = ctx, ctx.store
        self._hooks: dict[str, tuple[Sequence[Entry], list[Hook]]] = {}
        self._callers: dict[tuple[str, str, str], Caller] = {}

    @property
    def active(self) -> bool:
        """Whether there are any: the one thing that every write asks."""
        return bool(self._store.list(MUTATING) or self._store.list(VALIDATING))

    def close(self) -> None:
        for caller in self._callers.values():
            caller.close()
        self._callers.clear()

    async def mutate(self, about: Admitted) -> Json:
        """The object as the mutating webhooks want it. Raises ApiProblem."""
        assert about.new is not None
        called: list[tuple[Hook, Version, bytes]] = []  # and the object when it had answered
        for hook, version in self._concerned(MUTATING, about):
            if await self._mutate_by(hook, version, about):
                called.append((hook, version, encode(about.new)))
        for hook, version, seen in called:
            if hook.body.get("reinvocationPolicy") == "IfNeeded" and encode(about.new) != seen:
                await self._mutate_by(hook, version, about)
        return about.new

    async def admit_own(self, request: Request, operation: str, new: Json, old: Json | None, *, dry_run: bool) -> Json:
        """The object of a subresource that speaks its own kind (Scale, Eviction, …), as all webhooks want it."""
        about = Admitted(request, operation, new, old, dry_run, SUBRESOURCE_KINDS[request.subresource or "binding"])
        admitted = await self.mutate(about)
        await self.validate(about)
        return admitted

    async def refuse_or_pass(self, about: Admitted) -> None:
        """A deletion or a connection: mutating webhooks may refuse it, too, and have nothing to change."""
        for hook, version in self._concerned(MUTATING, about):
            await self._ask(hook, version, about)
        await self.validate(about)

    async def validate(self, about: Admitted) -> None:
        """Raises ApiProblem when one of the validating webhooks refuses. They are all asked at once."""
        asked = [self._ask(hook, version, about) for hook, version in self._concerned(VALIDATING, about)]
        if not asked:
            return
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    # -- which ----------------------------------------------------------------------------------------------------

    def _concerned(self, table: str, about: Admitted) -> Iterator[tuple[Hook, Version]]:
        if about.request.kind.key in (MUTATING, VALIDATING):
            return
        for hook in self._known(table):
            version = _version(hook, about)
            if version is not None and self._selected(hook, about):
                yield hook, version

    def _known(self, table: str) -> list[Hook]:
        entries = self._store.list(table)
        known = self._hooks.get(table)
        if known is not None and known[0] is entries:  # the store hands out the same tuple until something changes
            return known[1]
        hooks = []
        for entry in entries:
            for body in decode(entry.value).get("webhooks") or ():
                selectors = (body.get("namespaceSelector") or {}, body.get("objectSelector") or {})
                key = (table, entry.key[2], str(body["name"]))
                hooks.append(Hook(key, body, from_selector(selectors[0]), from_selector(selectors[1])))
        self._hooks[table] = (entries, hooks)
        kept = {hook.key for hook in hooks}
        for gone in [key for key in self._callers if key[0] == table and key not in kept]:
            self._callers.pop(gone).close()
        return hooks

    def _selected(self, hook: Hook, about: Admitted) -> bool:
        if not hook.namespaces.everything:
            kind, labels = about.request.kind, None
            if kind.key == "namespaces":
                labels = _labels(about.new if about.new is not None else about.old)
            elif kind.namespaced:
                entry = self._store.latest(("namespaces", "", about.request.namespace))
                labels = (entry.index.labels or {}) if entry is not None else {}
            if labels is not None and not hook.namespaces.matches(labels):
                return False
        if hook.objects.everything:
            return True
        return any(obj is not None and hook.objects.matches(_labels(obj)) for obj in (about.new, about.old))

    # -- asking ---------------------------------------------------------------------------------------------------

    async def _mutate_by(self, hook: Hook, version: Version, about: Admitted) -> bool:
        """Whether it was asked and answered."""
        response = await self._ask(hook, version, about)
        if response is None:
            return False
        patch = response.get("patch")
        if not patch:
            return True
        try:
            if response.get("patchType") != "JSONPatch":
                raise ValueError(f"patchType is {response.get('patchType')!r}, not JSONPatch")
            operations = msgspec.json.decode(base64.b64decode(patch))
            await self._apply(about, version, operations)
        except (ValueError, binascii.Error, msgspec.DecodeError, ApiProblem) as problem:
            self._failed(hook, f"the patch cannot be applied: {problem}")
            return False
        return True

    async def _apply(self, about: Admitted, version: Version, operations: Any) -> None:
        assert about.new is not None
        kind = about.request.kind
        before: Json = about.new["metadata"]
        shown = decode(encode(about.new)) if about.own else await self._seen(about, version, about.new)
        patched = json_patch(shown, operations)
        if not isinstance(patched, dict) or not isinstance(patched.get("metadata"), dict):
            raise ValueError("what it leaves is not an object with metadata")
        schema = body_schema(*about.own) if about.own else version.schema
        assert schema is not None  # every kind of a subresource has one
        conform(patched, schema)
        if kind.convert is not None and not about.own:
            patched = await self._ctx.conversions.object(kind, kind.storage_version, patched)
        elif version.to_storage is not None and not about.own:
            patched = version.to_storage(patched)
        patched["apiVersion"], patched["kind"] = about.new["apiVersion"], about.new["kind"]
        metadata = patched["metadata"]
        for field in _KEPT:  # who and when is not for webhooks to say
            if field in before:
                metadata[field] = before[field]
            else:
                metadata.pop(field, None)
        if kind.default is not None and not about.own:
            kind.default(patched)
        about.new = patched

    async def _ask(self, hook: Hook, version: Version, about: Admitted) -> Json | None:
        """Its answer; None when it failed and that is to be ignored. Raises ApiProblem."""
        if about.dry_run and hook.body.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise BadRequest(f'admission webhook "{hook.name}" does not support dry run')
        review: Json = {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": _question(about, version, new_uid(self._ctx.rng), await self._both(about, version)),
        }
        try:
            caller = self._caller(hook, target_of(hook.body.get("clientConfig") or {}, self._store))
            body = await caller.call(encode(review), int(hook.body.get("timeoutSeconds") or 10))
            response = response_of(body, review)
        except CallFailed as problem:
            self._failed(hook, str(problem))
            return None
        about.request.warnings += tuple(str(text)[:4096] for text in response.get("warnings") or ())
        if not response.get("allowed"):
            raise _denied(hook.name, response.get("status"))
        return response

    async def _both(self, about: Admitted, version: Version) -> tuple[Json | None, Json | None]:
        """The new and the old object as a webhook that wants this version sees them."""
        if about.own:
            return about.new, about.old
        found = [None if obj is None else await self._seen(about, version, obj) for obj in (about.new, about.old)]
        return found[0], found[1]

    async def _seen(self, about: Admitted, version: Version, obj: Json) -> Json:
        kind = about.request.kind
        if kind.convert is not None:
            obj = await self._ctx.conversions.object(kind, version.name, obj)
        return object_in(kind, version, encode(obj))

    def _caller(self, hook: Hook, target: Target) -> Caller:
        caller = self._callers.get(hook.key)
        if caller is None or caller.target != target:
            if caller is not None:
                caller.close()
            caller = self._callers[hook.key] = Caller(target)
        return caller

    def _failed(self, hook: Hook, why: str) -> None:
        if hook.body.get("failurePolicy") != "Ignore":
            raise InternalError(f'Internal error occurred: failed calling webhook "{hook.name}": {why}')


def not_evaluated(kind: Kind, obj: Json) -> tuple[str, ...]:
    """Warnings for whoever writes a configuration that means more than is heeded here."""
    if kind.key not in (MUTATING, VALIDATING):
        return ()
    return tuple(
        f"webhooks[{index}].matchConditions are kept, but CEL is not evaluated here: {hook.get('name')} is called for "
        "all that its rules and selectors choose"
        for index, hook in enumerate(obj.get("webhooks") or ())
        if hook.get("matchConditions")
    )


def _labels(obj: Json | None) -> dict[str, str]:
    return ((obj or {}).get("metadata") or {}).get("labels") or {}


def _version(hook: Hook, about: Admitted) -> Version | None:
    """The version of the kind that the webhook wants to see; None: its rules do not speak of this write."""
    request = about.request
    exact = hook.body.get("matchPolicy") == "Exact"
    versions = (request.version,) if exact else (request.version, *request.kind.versions)
    for version in versions:
        if any(_speaks_of(rule, request, version, about.operation) for rule in hook.body.get("rules") or ()):
            return version
    return None


def _speaks_of(rule: Json, request: Request, version: Version, operation: str) -> bool:
    kind = request.kind
    for wanted, found in (("operations", operation), ("apiGroups", kind.group), ("apiVersions", version.name)):
        values = rule.get(wanted) or ()
        if found not in values and "*" not in values:
            return False
    scope = rule.get("scope") or "*"
    if scope != "*" and scope != ("Namespaced" if kind.namespaced else "Cluster"):
        return False
    return any(_resource(pattern, kind, request.subresource) for pattern in rule.get("resources") or ())


def _resource(pattern: str, kind: Kind, subresource: str) -> bool:
    """`pods` and `*` are about objects alone; `pods/status`, `pods/*`, `*/status` and `*/*` about subresources."""
    name, slash, below = pattern.partition("/")
    if name not in ("*", kind.plural):
        return False
    if not slash:
        return not subresource
    return below == "*" or (bool(subresource) and below == subresource)


def _question(about: Admitted, version: Version, uid: str, objects: tuple[Json | None, Json | None]) -> Json:
    request = about.request
    kind = request.kind

    def names(of: Version) -> tuple[Json, Json]:
        shared = {"group": kind.group, "version": of.name}
        group, spoken, name = about.own or (kind.group, of.name, kind.kind)
        return {"group": group, "version": spoken, "kind": name}, {**shared, "resource": kind.plural}

    kind_name, resource = names(version)
    asked_kind, asked_resource = names(request.version)
    user: Json = {"username": request.user.name, "groups": list(request.user.groups)}
    if request.user.uid:
        user["uid"] = request.user.uid
    if request.user.extra:
        user["extra"] = {key: list(values) for key, values in request.user.extra.items()}
    options = {"CREATE": "CreateOptions", "UPDATE": "UpdateOptions", "DELETE": "DeleteOptions"}.get(about.operation)
    if request.verb == "patch" and about.operation == "UPDATE":
        options = "PatchOptions"
    question: Json = {
        "uid": uid,
        "kind": kind_name,
        "resource": resource,
        "requestKind": asked_kind,
        "requestResource": asked_resource,
        "name": about.name,
        "operation": about.operation,
        "userInfo": user,
        "object": objects[0],
        "oldObject": objects[1],
        "dryRun": about.dry_run,
        "options": {"kind": options, "apiVersion": api_version("meta.k8s.io", "v1")} if options else None,
    }
    if request.namespace or kind.key == "namespaces":
        question["namespace"] = request.namespace or about.name
    if request.subresource:
        question["subResource"] = question["requestSubResource"] = request.subresource
    return question


def _denied(name: str, status: Any) -> ApiProblem:
    """A refusal with the webhook's own status; without one it is a bad request."""
    given: Json = dict(status) if isinstance(status, dict) else {}
    code = given.get("code")
    given["code"] = code if isinstance(code, int) and 400 <= code < 600 else 400
    given["status"] = "Failure"
    said = given.get("message") or given.get("reason")
    denied = f'admission webhook "{name}" denied the request'
    given["message"] = f"{denied}: {said}" if said else f"{denied} without explanation"
    return problem_from_status(given, given["code"])
