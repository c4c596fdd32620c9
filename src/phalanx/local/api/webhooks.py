"""Admission webhooks: select those for a write, send the review, and apply the answer.

Never called for the configurations of webhooks and policies: a mistake in one could not be undone.
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
from phalanx.cel.admission import AdmissionEnvironment
from phalanx.cel.program import Program
from phalanx.cel.syntax import CompileError
from phalanx.cel.types import BOOL
from phalanx.cel.values import EvaluationError
from phalanx.local.api.admission_views import both, conditions_hold, copy_of_new, inputs, question, take
from phalanx.local.api.context import Context
from phalanx.local.api.patch_json import json_patch
from phalanx.local.api.policies import AdmissionPolicies
from phalanx.local.api.problems import forbidden
from phalanx.local.api.request import Request
from phalanx.local.api.rule_matching import EXEMPT, MUTATING, VALIDATING, Admitted, RuleSelectors, matched_version
from phalanx.local.api.view import decode, encode
from phalanx.local.api.webhook_calls import CallFailed, WebhookCallers, response_of, target_of
from phalanx.local.store.contract import Entry
from phalanx.model.kinds import SUBRESOURCE_KINDS, Json, Version


class Hook(msgspec.Struct, frozen=True):
    key: tuple[str, str, str]  # kind, configuration, name
    body: Json
    selectors: RuleSelectors
    conditions: tuple[Program | CompileError, ...] = ()

    @property
    def name(self) -> str:
        return self.key[2]


class Webhooks:
    def __init__(self, ctx: Context) -> None:
        self._ctx, self._store = ctx, ctx.store
        self._hooks: dict[str, tuple[Sequence[Entry], list[Hook]]] = {}
        self._callers = WebhookCallers[tuple[str, str, str]]()
        self.policies = AdmissionPolicies(ctx)

    @property
    def active(self) -> bool:
        """Return True if there are any webhooks or policies; every write asks this."""
        return bool(self._store.list(MUTATING) or self._store.list(VALIDATING)) or self.policies.active

    def close(self) -> None:
        self._callers.close()

    async def mutate(self, about: Admitted) -> Json:
        """Return the object as mutating policies and webhooks want it. Raises ApiProblem."""
        assert about.new is not None
        await self.policies.mutate(about)
        before = encode(about.new)
        called: list[tuple[Hook, Version, bytes]] = []  # and the object after its answer
        for hook, version in self._concerned(MUTATING, about):
            if await self._mutate_by(hook, version, about):
                called.append((hook, version, encode(about.new)))
        for hook, version, seen in called:
            if hook.body.get("reinvocationPolicy") == "IfNeeded" and encode(about.new) != seen:
                await self._mutate_by(hook, version, about)
        if called and encode(about.new) != before:
            await self.policies.mutate(about, again=True)
        return about.new

    async def admit_own(self, request: Request, operation: str, new: Json, old: Json | None, *, dry_run: bool) -> Json:
        """Return the object of a subresource with its own kind (Scale, Eviction, …) as all webhooks want it."""
        about = Admitted(request, operation, new, old, dry_run, SUBRESOURCE_KINDS[request.subresource or "binding"])
        admitted = await self.mutate(about)
        await self.validate(about)
        return admitted

    async def refuse_or_pass(self, about: Admitted) -> None:
        """Ask the webhooks about a deletion or a connection.

        Mutating webhooks may refuse it, too, and have nothing to change.
        """
        for hook, version in self._concerned(MUTATING, about):
            await self._ask(hook, version, about)
        await self.validate(about)

    async def validate(self, about: Admitted) -> None:
        """Raise ApiProblem when a validating policy or webhook refuses. The webhooks are all asked at once."""
        await self.policies.validate(about)
        asked = [self._ask(hook, version, about) for hook, version in self._concerned(VALIDATING, about)]
        if not asked:
            return
        answers = await asyncio.gather(*asked, return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    # -- which ----------------------------------------------------------------------------------------------------

    def _concerned(self, table: str, about: Admitted) -> Iterator[tuple[Hook, Version]]:
        if about.request.kind.key in EXEMPT:
            return
        for hook in self._known(table):
            version = matched_version(hook.body.get("rules") or (), hook.body.get("matchPolicy"), about)
            if version is not None and hook.selectors.choose(about, self._store):
                yield hook, version

    def _known(self, table: str) -> list[Hook]:
        entries = self._store.list(table)
        known = self._hooks.get(table)
        if known is not None and known[0] is entries:  # the store hands out the same tuple until something changes
            return known[1]
        hooks = []
        for entry in entries:
            for body in decode(entry.value).get("webhooks") or ():
                key = (table, entry.key[2], str(body["name"]))
                hooks.append(Hook(key, body, RuleSelectors.of(body), compiled_conditions(body)))
        self._hooks[table] = (entries, hooks)
        kept = {hook.key for hook in hooks}
        for gone in [key for key in self._callers if key[0] == table and key not in kept]:
            self._callers.forget(gone)
        return hooks

    # -- asking ---------------------------------------------------------------------------------------------------

    async def _mutate_by(self, hook: Hook, version: Version, about: Admitted) -> bool:
        """Ask a webhook and apply its patch; return True if it answered and no patch failed."""
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
            patched = json_patch(await copy_of_new(self._ctx, about, version), operations)
            await take(self._ctx, about, version, patched)
        except (ValueError, binascii.Error, msgspec.DecodeError, ApiProblem) as problem:
            self._failed(hook, f"the patch cannot be applied: {problem}")
            return False
        return True

    async def _ask(self, hook: Hook, version: Version, about: Admitted) -> Json | None:
        """Return its answer; None when its conditions do not hold or its failure is ignored. Raises ApiProblem."""
        if not await self._conditions_hold(hook, version, about):
            return None
        if about.dry_run and hook.body.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise BadRequest(f'admission webhook "{hook.name}" does not support dry run')
        review: Json = {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": question(about, version, new_uid(self._ctx.rng), await both(self._ctx, about, version)),
        }
        try:
            caller = self._callers.of(hook.key, target_of(hook.body.get("clientConfig") or {}, self._store))
            body = await caller.call(encode(review), int(hook.body.get("timeoutSeconds") or 10))
            response = response_of(body, review)
        except CallFailed as problem:
            self._failed(hook, str(problem))
            return None
        about.request.warnings += tuple(str(text)[:4096] for text in response.get("warnings") or ())
        if not response.get("allowed"):
            raise _denied(hook.name, response.get("status"))
        return response

    async def _conditions_hold(self, hook: Hook, version: Version, about: Admitted) -> bool:
        if not hook.conditions:
            return True
        known = inputs(self._ctx, about, version, await both(self._ctx, about, version))
        try:
            return conditions_hold(hook.conditions, known)
        except EvaluationError as problem:
            if hook.body.get("failurePolicy") == "Ignore":
                return False
            raise forbidden(about.request.kind, about.name, str(problem)) from None

    def _failed(self, hook: Hook, why: str) -> None:
        if hook.body.get("failurePolicy") != "Ignore":
            raise InternalError(f'Internal error occurred: failed calling webhook "{hook.name}": {why}')


def compiled_conditions(hook: Json) -> tuple[Program | CompileError, ...]:
    """Return the compiled `matchConditions` of a webhook."""
    conditions = hook.get("matchConditions") or ()
    if not conditions:
        return ()
    environment = AdmissionEnvironment(composed=False)
    return tuple(environment.compile_to(str(c.get("expression") or ""), BOOL) for c in conditions)


def _denied(name: str, status: Any) -> ApiProblem:
    """Build the refusal of a webhook with its own status; without one it is a bad request."""
    given: Json = dict(status) if isinstance(status, dict) else {}
    code = given.get("code")
    given["code"] = code if isinstance(code, int) and 400 <= code < 600 else 400
    given["status"] = "Failure"
    explanation = given.get("message") or given.get("reason")
    denied = f'admission webhook "{name}" denied the request'
    given["message"] = f"{denied}: {explanation}" if explanation else f"{denied} without explanation"
    return problem_from_status(given, given["code"])
