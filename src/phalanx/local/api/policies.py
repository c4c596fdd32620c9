"""Select the ValidatingAdmissionPolicies and MutatingAdmissionPolicies of a write, and evaluate them.

Policies are compiled when they or their bindings change. Mutating policies run before mutating webhooks, validating
policies before validating webhooks, as in kube-apiserver. The `paramRef` of a binding selects the parameter objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.base.errors import ApiProblem, problem_from_status
from phalanx.cel.admission import (
    APPLY_TYPE,
    JSON_PATCH_TYPE,
    MESSAGE_BYTES,
    AdmissionEnvironment,
    BindingEvaluation,
    OutOfBudget,
    Variables,
    compile_variables,
)
from phalanx.cel.program import Program
from phalanx.cel.syntax import CompileError
from phalanx.cel.types import BOOL, NULL, STRING, list_of
from phalanx.cel.values import EvaluationError
from phalanx.local.api.admission_views import both, conditions_hold, inputs, namespace_of
from phalanx.local.api.context import Context
from phalanx.local.api.mutations import apply_configuration, json_patched
from phalanx.local.api.rule_matching import (
    EXEMPT,
    MUTATING_BINDINGS,
    MUTATING_POLICIES,
    VALIDATING_BINDINGS,
    VALIDATING_POLICIES,
    Admitted,
    RuleSelectors,
    matched_version,
)
from phalanx.local.api.view import decode, encode, object_in
from phalanx.local.store.contract import Entry, Key
from phalanx.model.kinds import Json, Kind, Version
from phalanx.model.selectors import from_selector


class ConfigurationError(Exception):
    """A policy cannot be evaluated as it is configured."""


def params_of(ctx: Context, spec: Json, binding: Json, about: Admitted) -> list[Any]:
    """Return the parameters that a policy is evaluated with, once for each; [None] if it has none."""
    wanted, ref = spec.get("paramKind"), binding.get("paramRef")
    if not wanted or not ref:
        return [None]
    group, _, version = str(wanted.get("apiVersion") or "").rpartition("/")
    kind = ctx.registry.by_kind(group, version, str(wanted.get("kind") or ""))
    if kind is None:
        shown = f"{wanted.get('apiVersion')}, Kind={wanted.get('kind')}"
        raise ConfigurationError(f"paramKind kind `{shown}` not known")
    found = _chosen(ctx, kind, version, ref, _namespace(kind, ref, about))
    if not found and ref.get("parameterNotFoundAction") == "Deny":
        raise ConfigurationError("no params found for policy binding with `Deny` parameterNotFoundAction")
    return found


def _namespace(kind: Kind, ref: Json, about: Admitted) -> str:
    named = str(ref.get("namespace") or "")
    if not kind.namespaced:
        if named:
            raise ConfigurationError("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
        return ""
    namespace = named or about.request.namespace
    if not namespace:
        text = "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
        raise ConfigurationError(text)
    return namespace


def _chosen(ctx: Context, kind: Kind, version: str, ref: Json, namespace: str) -> list[Any]:
    if ref.get("name"):
        entry = ctx.store.latest((kind.storage_key, namespace, str(ref["name"])))
        entries = [] if entry is None else [entry]
    else:
        selector = from_selector(ref.get("selector") or {})
        listed = ctx.store.list(kind.storage_key, namespace)
        entries = [entry for entry in listed if selector.matches(entry.index.labels or {})]
    return [object_in(kind, kind.version(version), entry.value) for entry in entries]


FAILURES = "validation.policy.admission.k8s.io/validation_failure"  # audit annotation
_MAX_FAILURES = 50  # that the audit annotation lists
_MAX_ANNOTATION = 10 * 1024  # characters of an audit annotation
_CODES = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413, "Invalid": 422}

Compiled = Program | CompileError


@dataclass(slots=True)
class Match:
    """What a policy or a binding is about."""

    body: Json
    selectors: RuleSelectors

    def version(self, about: Admitted, ctx: Context) -> Version | None:
        """Return the version that the rules want; None if this write is none of their business."""
        rules = self.body.get("resourceRules")
        version: Version | None = about.request.version
        if rules:
            version = matched_version(rules, self.body.get("matchPolicy"), about)
        excluded = self.body.get("excludeResourceRules") or ()
        if version is None or matched_version(excluded, self.body.get("matchPolicy"), about) is not None:
            return None
        return version if self.selectors.choose(about, ctx.store) else None


@dataclass(slots=True)
class AdmissionPolicy:
    """One policy with its compiled expressions and the bindings that use it."""

    name: str
    spec: Json
    match: Match
    variables: dict[str, Compiled]
    conditions: list[Compiled]
    validations: list[tuple[Json, Compiled, Compiled | None]]
    annotations: list[tuple[str, Compiled]]
    mutations: list[tuple[str, Compiled]]  # (patch type, expression)
    bindings: list[tuple[Json, Match]] = field(default_factory=list)

    @property
    def lenient(self) -> bool:
        """Return True if failures of the policy are ignored."""
        return self.spec.get("failurePolicy") == "Ignore"


@dataclass(slots=True)
class _Invocation:
    policy: AdmissionPolicy
    binding: Json
    version: Version
    params: Any


@dataclass(slots=True)
class _Refusal:
    message: str
    reason: str = ""


class AdmissionPolicies:
    """All policies of a server."""

    def __init__(self, ctx: Context) -> None:
        self._ctx, self._store = ctx, ctx.store
        self._known: dict[str, tuple[Sequence[Entry], Sequence[Entry], list[AdmissionPolicy]]] = {}
        self._compiled: dict[Key, tuple[int, AdmissionPolicy]] = {}  # by key, with the revision it was compiled from

    @property
    def active(self) -> bool:
        """Return True if any policy is bound."""
        return bool(self._store.list(VALIDATING_BINDINGS) or self._store.list(MUTATING_BINDINGS))

    def _policies(self, policies: str, bindings: str) -> list[AdmissionPolicy]:
        found = self._store.list(policies), self._store.list(bindings)
        known = self._known.get(policies)
        if known is not None and known[0] is found[0] and known[1] is found[1]:
            return known[2]
        bound: dict[str, list[Json]] = {}
        for entry in found[1]:
            body: Json = decode(entry.value)
            bound.setdefault(str((body.get("spec") or {}).get("policyName") or ""), []).append(body)
        made = [self._compile(e) for e in found[0] if e.key[2] in bound]
        for policy in made:
            policy.bindings = [(b, _match(b["spec"].get("matchResources") or {})) for b in bound[policy.name]]
        self._known[policies] = (found[0], found[1], made)
        there = {entry.key for entry in found[0]}
        for gone in [key for key in self._compiled if key[0] == policies and key not in there]:
            del self._compiled[gone]
        return made

    def _compile(self, entry: Entry) -> AdmissionPolicy:
        """Return a compiled policy; one that did not change is not compiled again."""
        known = self._compiled.get(entry.key)
        if known is None or known[0] != entry.revision:
            known = self._compiled[entry.key] = (entry.revision, compile_policy(decode(entry.value)))
        return known[1]

    def _invocations(
        self, policies: str, bindings: str, about: Admitted, refusals: list[_Refusal]
    ) -> Iterator[_Invocation]:
        if about.request.kind.key in EXEMPT:
            return
        mutates = policies == MUTATING_POLICIES
        for policy in self._policies(policies, bindings):
            version = policy.match.version(about, self._ctx)
            if version is None:
                continue
            for binding, match in policy.bindings:
                if match.version(about, self._ctx) is None:
                    continue
                try:
                    found = params_of(self._ctx, policy.spec, binding["spec"], about)
                except ConfigurationError as problem:
                    if not policy.lenient:
                        text = f"failed to configure binding: {problem}"
                        refusals.append(_Refusal(_denied(policy, binding, text, mutates)))
                    continue
                for params in found:
                    yield _Invocation(policy, binding, version, params)

    async def _evaluation(self, about: Admitted, invocation: _Invocation) -> BindingEvaluation:
        objects = await both(self._ctx, about, invocation.version)
        known = inputs(self._ctx, about, invocation.version, objects)
        known["namespaceObject"] = namespace_of(self._ctx, about)
        if invocation.policy.spec.get("paramKind"):
            known["params"] = invocation.params
        evaluation = BindingEvaluation(known)
        known["variables"] = Variables(invocation.policy.variables, evaluation)
        return evaluation

    # -- validating ------------------------------------------------------------------------------------------------

    async def validate(self, about: Admitted) -> None:
        """Raise ApiProblem if a policy refuses the write."""
        refusals: list[_Refusal] = []
        failures: list[Json] = []
        published: dict[str, list[str]] = {}
        for invocation in self._invocations(VALIDATING_POLICIES, VALIDATING_BINDINGS, about, refusals):
            evaluation = await self._evaluation(about, invocation)
            policy, binding = invocation.policy, invocation.binding
            for index, refusal in self._decisions(policy, evaluation):
                self._act(about, policy, binding, index, refusal, refusals, failures)
            for key, program in policy.annotations:
                self._annotate(policy, binding, key, program, evaluation, published, refusals)
        for key, values in published.items():
            about.request.annotations[key] = ", ".join(values)
        if failures:
            about.request.annotations[FAILURES] = encode(failures[:_MAX_FAILURES]).decode()
        _raise_first(about, refusals)

    def _decisions(self, policy: AdmissionPolicy, evaluation: BindingEvaluation) -> Iterator[tuple[int, _Refusal]]:
        """Yield what the validations of a policy refuse, with their index."""
        try:
            if not conditions_hold(policy.conditions, evaluation.variables):
                return
        except EvaluationError as problem:
            if not policy.lenient:
                yield 0, _Refusal(str(problem))
            return
        for index, (body, program, message) in enumerate(policy.validations):
            try:
                if evaluation.run(program) is True:
                    continue
                yield index, _Refusal(_message(body, message, evaluation), str(body.get("reason") or "Invalid"))
            except EvaluationError as problem:
                if not policy.lenient:
                    yield index, _Refusal(str(problem))
                if isinstance(problem, OutOfBudget):
                    return

    def _act(
        self,
        about: Admitted,
        policy: AdmissionPolicy,
        binding: Json,
        index: int,
        refusal: _Refusal,
        refusals: list[_Refusal],
        failures: list[Json],
    ) -> None:
        name = binding["metadata"]["name"]
        actions = binding["spec"].get("validationActions") or []
        if "Deny" in actions:
            refusals.append(_Refusal(_denied(policy, binding, refusal.message), refusal.reason))
        if "Audit" in actions:
            failures.append(
                {
                    "message": refusal.message,
                    "policy": policy.name,
                    "binding": name,
                    "expressionIndex": index,
                    "validationActions": actions,
                }
            )
        if "Warn" in actions:
            text = f"Validation failed for ValidatingAdmissionPolicy '{policy.name}' with binding '{name}'"
            about.request.warnings += (f"{text}: {refusal.message}",)

    def _annotate(
        self,
        policy: AdmissionPolicy,
        binding: Json,
        key: str,
        program: Compiled,
        evaluation: BindingEvaluation,
        published: dict[str, list[str]],
        refusals: list[_Refusal],
    ) -> None:
        try:
            value = evaluation.run(program)
        except EvaluationError as problem:
            if not policy.lenient:
                refusals.append(_Refusal(_denied(policy, binding, str(problem))))
            return
        text = value.strip()[:_MAX_ANNOTATION] if isinstance(value, str) else ""
        values = published.setdefault(f"{policy.name}/{key}", []) if text else []
        if text and text not in values:
            values.append(text)

    # -- mutating --------------------------------------------------------------------------------------------------

    async def mutate(self, about: Admitted, *, again: bool = False) -> None:
        """Change the new object as mutating policies want it. `again`: only those with reinvocationPolicy IfNeeded."""
        refusals: list[_Refusal] = []
        for invocation in list(self._invocations(MUTATING_POLICIES, MUTATING_BINDINGS, about, refusals)):
            policy = invocation.policy
            if again and policy.spec.get("reinvocationPolicy") != "IfNeeded":
                continue
            try:
                await self._mutate_by(about, invocation)
            except (EvaluationError, ValueError, ApiProblem) as problem:
                if not policy.lenient:
                    refusals.append(_Refusal(_denied(policy, invocation.binding, str(problem), mutates=True)))
        _raise_first(about, refusals, mutates=True)

    async def _mutate_by(self, about: Admitted, invocation: _Invocation) -> None:
        evaluation = await self._evaluation(about, invocation)
        if not conditions_hold(invocation.policy.conditions, evaluation.variables):
            return
        for form, program in invocation.policy.mutations:
            evaluation = await self._evaluation(about, invocation)  # the object may have changed since
            value = evaluation.run(program)
            change = json_patched if form == "JSONPatch" else apply_configuration
            await change(self._ctx, about, invocation.version, value)


def _match(body: Json) -> Match:
    return Match(body, RuleSelectors.of(body))


def environment_of(
    spec: Json, *, patch: bool = False, composed: bool = True, new: bool = False
) -> AdmissionEnvironment:
    """Return the environment that the expressions of a policy are compiled in."""
    return AdmissionEnvironment(params=bool(spec.get("paramKind")), patch=patch, composed=composed, new=new)


def compile_policy(policy: Json) -> AdmissionPolicy:
    """Compile all expressions of a policy; what does not compile is an error when it is evaluated."""
    spec: Json = policy.get("spec") or {}
    patch = bool(spec.get("mutations"))
    environment = environment_of(spec, patch=patch)
    variables = compile_variables(environment, spec.get("variables") or ())
    conditions = environment_of(spec, composed=False)
    validations: list[tuple[Json, Compiled, Compiled | None]] = []
    for body in spec.get("validations") or ():
        text = str(body.get("messageExpression") or "")
        message = environment.compile_to(text, STRING) if text.strip() else None
        validations.append((body, environment.compile_to(str(body.get("expression") or ""), BOOL), message))
    return AdmissionPolicy(
        str(policy["metadata"]["name"]),
        spec,
        _match(spec.get("matchConstraints") or {}),
        variables,
        [conditions.compile_to(str(c.get("expression") or ""), BOOL) for c in spec.get("matchConditions") or ()],
        validations,
        [
            (str(a.get("key") or ""), environment.compile_to(str(a.get("valueExpression") or ""), STRING, NULL))
            for a in spec.get("auditAnnotations") or ()
        ],
        [_mutation(environment, body) for body in spec.get("mutations") or ()],
    )


def _mutation(environment: AdmissionEnvironment, body: Json) -> tuple[str, Compiled]:
    form = str(body.get("patchType") or "")
    if form == "JSONPatch":
        text = str((body.get("jsonPatch") or {}).get("expression") or "")
        return form, environment.compile_to(text, list_of(JSON_PATCH_TYPE))
    text = str((body.get("applyConfiguration") or {}).get("expression") or "")
    return form, environment.compile_to(text, APPLY_TYPE)


def _message(body: Json, program: Compiled | None, evaluation: BindingEvaluation) -> str:
    """Return the message of a validation that refuses: by its expression, its text, or the expression itself."""
    text = ""
    if program is not None:
        try:
            value = evaluation.run(program)
            text = value.strip() if isinstance(value, str) else ""
        except OutOfBudget:
            raise
        except EvaluationError:
            text = ""
        if "\n" in text or len(text.encode()) > MESSAGE_BYTES:
            text = ""
    text = text or str(body.get("message") or "").strip()
    return text or f"failed expression: {str(body.get('expression') or '').strip()}"


def _denied(policy: AdmissionPolicy, binding: Json, why: str, mutates: bool = False) -> str:
    name = binding["metadata"]["name"]
    if mutates:
        return f"policy '{policy.name}' with binding '{name}' denied request: {why}"
    return f"ValidatingAdmissionPolicy '{policy.name}' with binding '{name}' denied request: {why}"


def _raise_first(about: Admitted, refusals: list[_Refusal], mutates: bool = False) -> None:
    if not refusals:
        return
    kind, first = about.request.kind, refusals[0]
    shown = f' "{about.name}"' if about.name else ""
    message = first.message if mutates else f"{kind.storage_key}{shown} is forbidden: {first.message}"
    reason = first.reason or "Invalid"
    raise problem_from_status(
        {
            "message": message,
            "reason": reason,
            "code": _CODES.get(reason, 422),
            "details": {
                "name": about.name,
                "group": kind.group,
                "kind": kind.plural,
                "causes": [{"message": r.message} for r in (refusals if mutates else refusals[:1])],
            },
        }
    )
