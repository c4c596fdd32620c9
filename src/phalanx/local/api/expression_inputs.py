"""What expressions of admission see of a write: objects, request, namespace and the authorizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.cel.admission import CONDITIONS_BUDGET, BindingEvaluation
from phalanx.cel.functions.authorizer import AccessQuestion, AuthorizerValue, ResourceCheck
from phalanx.cel.program import Program
from phalanx.cel.schemas import value_of
from phalanx.cel.syntax import CompileError
from phalanx.cel.values import EvaluationError
from phalanx.local.api.admission_views import question
from phalanx.local.api.context import Context
from phalanx.local.api.request import User
from phalanx.local.api.rights import Attributes
from phalanx.local.api.rule_matching import Admitted
from phalanx.local.api.view import decode
from phalanx.model.kinds import Json, Version

_HIDDEN = ("uid", "object", "oldObject")  # of the AdmissionRequest: variables of their own, or of no use
_TIMES: Json = {"type": "string", "format": "date-time"}
_NAMESPACE: Json = {
    "properties": {
        "metadata": {"properties": {"creationTimestamp": _TIMES, "deletionTimestamp": _TIMES}},
        "status": {"properties": {"conditions": {"items": {"properties": {"lastTransitionTime": _TIMES}}}}},
    }
}
_METADATA = (
    "name", "generateName", "namespace", "labels", "annotations", "uid", "creationTimestamp", "deletionTimestamp",
    "deletionGracePeriodSeconds", "generation", "resourceVersion", "finalizers",
)  # fmt: skip


def inputs(ctx: Context, about: Admitted, version: Version, objects: tuple[Json | None, Json | None]) -> dict[str, Any]:
    """Return the variables of match conditions; policies have a few more."""
    asked = question(about, version, "", objects)
    request = {key: value for key, value in asked.items() if key not in _HIDDEN and value is not None}
    authorizer = _authorizer(ctx, about.request.user)
    kind = about.request.kind
    about_this = AccessQuestion(
        group=kind.group,
        resource=kind.plural,
        subresource=about.request.subresource,
        namespace=about.request.namespace,
        name=about.name,
    )
    return {
        "object": objects[0],
        "oldObject": objects[1],
        "request": request,
        "namespaceObject": None,
        "authorizer": authorizer,
        "authorizer.requestResource": ResourceCheck(authorizer.decide, about_this),
    }


def namespace_of(ctx: Context, about: Admitted) -> Any:
    """Return the namespace of the object as expressions see it; None for objects outside of namespaces."""
    if not about.request.namespace or about.request.kind.key == "namespaces":
        return None
    entry = ctx.store.latest(("namespaces", "", about.request.namespace))
    if entry is None:
        return None
    found: Json = decode(entry.value)
    metadata = {key: found["metadata"][key] for key in _METADATA if key in found["metadata"]}
    shown = {"metadata": metadata, "spec": found.get("spec") or {}, "status": found.get("status") or {}}
    return value_of(shown, _NAMESPACE)


def conditions_hold(conditions: Sequence[Program | CompileError], variables: dict[str, Any]) -> bool:
    """Return whether all match conditions are true; raise EvaluationError if one fails and none is false."""
    evaluation = BindingEvaluation(variables, CONDITIONS_BUDGET)
    failed: list[str] = []
    for program in conditions:
        try:
            if evaluation.run(program) is not True:
                return False
        except EvaluationError as problem:
            failed.append(str(problem))
    if failed:
        raise EvaluationError(failed[0] if len(failed) == 1 else f"[{', '.join(failed)}]")
    return True


def _authorizer(ctx: Context, user: User) -> AuthorizerValue:
    def decide(asked: AccessQuestion) -> tuple[bool, str]:
        if ctx.rights is None:
            return True, ""
        who = user
        if asked.service_account is not None:
            namespace, name = asked.service_account
            groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
            who = User(f"system:serviceaccount:{namespace}:{name}", groups=groups)
        answer = ctx.rights.decide(
            who,
            Attributes(
                asked.verb, asked.group, asked.resource, asked.subresource, asked.namespace, asked.name, asked.path
            ),
        )
        return answer.allowed, answer.reason

    return AuthorizerValue(decide)
