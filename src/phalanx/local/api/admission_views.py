"""Build what admission sees of a write: for webhooks the objects in the version they want, and for expressions of
policies the objects, the request, the namespace and the authorizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from phalanx.cel.admission import CONDITIONS_BUDGET, BindingEvaluation
from phalanx.cel.functions.authorizer import AccessQuestion, AuthorizerValue, ResourceCheck
from phalanx.cel.program import Program
from phalanx.cel.schemas import value_of
from phalanx.cel.syntax import CompileError
from phalanx.cel.values import EvaluationError
from phalanx.local.api.context import Context
from phalanx.local.api.request import User
from phalanx.local.api.rights import Attributes
from phalanx.local.api.rule_matching import Admitted
from phalanx.local.api.view import api_version, decode, encode, object_in
from phalanx.model.builtin import body_schema
from phalanx.model.decode import conform
from phalanx.model.kinds import Json, Version

_KEPT = ("name", "namespace", "uid", "creationTimestamp", "resourceVersion", "generation", "managedFields")


async def both(ctx: Context, about: Admitted, version: Version) -> tuple[Json | None, Json | None]:
    """Return the new and the old object in a version."""
    if about.own:
        return about.new, about.old
    found = [None if obj is None else await _seen(ctx, about, version, obj) for obj in (about.new, about.old)]
    return found[0], found[1]


async def copy_of_new(ctx: Context, about: Admitted, version: Version) -> Json:
    """Return a copy of the new object in a version, which the caller may change."""
    assert about.new is not None
    copied: Json = decode(encode(about.new)) if about.own else await _seen(ctx, about, version, about.new)
    return copied


async def _seen(ctx: Context, about: Admitted, version: Version, obj: Json) -> Json:
    kind = about.request.kind
    if kind.convert is not None:
        obj = await ctx.conversions.object(kind, version.name, obj)
    return object_in(kind, version, encode(obj))


async def take(ctx: Context, about: Admitted, version: Version, patched: Any) -> None:
    """Take what a webhook or policy returned as the new object of a write. Raises ValueError or ApiProblem."""
    assert about.new is not None
    kind = about.request.kind
    before: Json = about.new["metadata"]
    if not isinstance(patched, dict) or not isinstance(patched.get("metadata"), dict):
        raise ValueError("what it leaves is not an object with metadata")
    schema = body_schema(*about.own) if about.own else version.schema
    assert schema is not None  # every kind of a subresource has one
    conform(patched, schema, whole_floats=kind.whole_floats(schema))
    if kind.convert is not None and not about.own:
        patched = await ctx.conversions.object(kind, kind.storage_version, patched)
    elif version.to_storage is not None and not about.own:
        patched = version.to_storage(patched)
    patched["apiVersion"], patched["kind"] = about.new["apiVersion"], about.new["kind"]
    metadata = patched["metadata"]
    for field in _KEPT:  # neither webhooks nor policies decide these
        if field in before:
            metadata[field] = before[field]
        else:
            metadata.pop(field, None)
    if kind.default is not None and not about.own:
        kind.default(patched)
    about.new = patched


def question(about: Admitted, version: Version, uid: str, objects: tuple[Json | None, Json | None]) -> Json:
    """Return the AdmissionRequest of a write."""
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
    asked: Json = {
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
        asked["namespace"] = request.namespace or about.name
    if request.subresource:
        asked["subResource"] = asked["requestSubResource"] = request.subresource
    return asked


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
