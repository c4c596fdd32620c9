"""A write as webhooks and policies see it: objects in the version they want, the question, and back to storage."""

from __future__ import annotations

from typing import Any

from phalanx.local.api.context import Context
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
    """Make what a webhook or policy left the new object of a write. Raises ValueError or ApiProblem."""
    assert about.new is not None
    kind = about.request.kind
    before: Json = about.new["metadata"]
    if not isinstance(patched, dict) or not isinstance(patched.get("metadata"), dict):
        raise ValueError("what it leaves is not an object with metadata")
    schema = body_schema(*about.own) if about.own else version.schema
    assert schema is not None  # every kind of a subresource has one
    conform(patched, schema)
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
