"""PATCH: which of the four patch languages, and what each does to the stored object."""

from __future__ import annotations

from typing import Any

from phalanx.base.clock import rfc3339
from phalanx.base.errors import BadRequest, UnsupportedMediaType
from phalanx.local.api.apply import Applier
from phalanx.local.api.body import check_place, check_type, parse_body, shape, shape_applied
from phalanx.local.api.change import Changes
from phalanx.local.api.gated_fields import gated_fields
from phalanx.local.api.options import WriteOptions, write_options
from phalanx.local.api.patch_json import json_patch, merge_patch
from phalanx.local.api.patch_strategic import strategic_patch
from phalanx.local.api.problems import not_found
from phalanx.local.api.request import Answer, Request
from phalanx.local.api.structural import CustomObject
from phalanx.local.api.view import decode
from phalanx.model.decode import conform, media_type, parse
from phalanx.model.kinds import Json
from phalanx.model.schema import Object

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"


class Patches:
    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._applier = Applier(changes.fields)

    async def patch(self, request: Request) -> Answer:
        options = write_options(request)
        language = self.language(request)
        if language == APPLY_PATCH:
            return await self._apply(request, options)
        patch = read_patch(request, language)
        warnings: list[str] = []

        def mutate(current: Json) -> Json:
            new: Json = transform(current, patch, language, request.version.schema)
            warnings[:] = self._reshape(request, options, new, patch)
            return new

        obj, entry = await self._changes.change(request, options, mutate, pinned=pins(patch, language))
        return await self._changes.answer(request, obj, entry, 200, (*warnings, *self._changes.warnings(request, obj)))

    def language(self, request: Request) -> str:
        language = media_type(request.content_type)
        offered = [JSON_PATCH, MERGE_PATCH, APPLY_PATCH]
        if request.kind.strategic:
            offered.insert(2, STRATEGIC_PATCH)
        if language not in offered:
            raise UnsupportedMediaType(
                "the body of the request was in an unknown format - accepted media types include: " + ", ".join(offered)
            )
        return language

    def _reshape(self, request: Request, options: WriteOptions, new: Any, patch: Any) -> tuple[str, ...]:
        """Check that the result of a patch has the shape and place of the object; return the warnings."""
        if not isinstance(new, dict):
            raise BadRequest("the patch makes the object something that is not an object")
        metadata = new.get("metadata")
        if metadata is not None and not isinstance(metadata, dict):
            raise BadRequest("the patch makes metadata something that is not an object")
        check_type(request.kind, request.version, new)
        # Most patches are of a status and leave the spec as it is stored, which is not read here.
        aside = new.pop("spec", None) if _leaves_spec(request, patch) else None
        warnings = shape(new, request.kind, request.version.schema, options, [])
        if aside is not None:
            new["spec"] = aside
        check_place(request, new)
        return warnings

    async def _apply(self, request: Request, options: WriteOptions) -> Answer:
        """Answer a server-side apply: create the object or merge the configuration into it."""
        changes, kind = self._changes, request.kind
        obj, repeated = parse_body(request, request.version.schema, duplicates=options.validation != "Ignore")
        if not obj.get("apiVersion") or not obj.get("kind"):
            raise BadRequest("invalid object type: apiVersion and kind must be set in an applied configuration")
        check_type(kind, request.version, obj)
        warnings = shape_applied(request, obj, options, repeated)
        now = rfc3339(changes.ctx.clock.now())
        pinned = obj["metadata"].get("resourceVersion") or ""
        uid = obj["metadata"].get("uid") or ""
        config = await changes.to_storage(kind, request.version, obj)
        entry = changes.latest(request)
        if entry is None:
            if request.subresource or uid:
                raise not_found(kind, request.name)
            made = self._applier.apply(kind, None, config, options.manager, now, force=options.force)
            view = _conforming(request, await changes.in_version(request, made))
            asked = gated_fields(view)
            stored, new_entry = await changes.create_object(request, options, view, applied=True)
            announced = await changes.dropped(request, asked, stored, new_entry)
            announced += changes.warnings(request, stored)
            return await changes.answer(request, stored, new_entry, 201, (*warnings, *announced))

        async def mutate(current: Json) -> Json:
            latest = changes.latest(request)
            if latest is None:
                raise not_found(kind, request.name)
            live: Json = await changes.stored(kind, latest) if kind.convert is not None else decode(latest.value)
            new = self._applier.apply(
                kind, live, config, options.manager, now, force=options.force, subresource=request.subresource
            )
            if pinned:
                new["metadata"]["resourceVersion"] = pinned
            if uid:
                new["metadata"]["uid"] = uid
            return _conforming(request, await changes.in_version(request, new))

        obj, stored_entry = await changes.change(request, options, mutate, pinned=bool(pinned), applied=True)
        return await changes.answer(request, obj, stored_entry, 200, (*warnings, *changes.warnings(request, obj)))


def _leaves_spec(request: Request, patch: Any) -> bool:
    if request.subresource != "status" or isinstance(request.version.schema, CustomObject):
        return False
    return isinstance(patch, dict) and "spec" not in patch and not any(name.startswith("$") for name in patch)


def _conforming(request: Request, view: Json) -> Json:
    """Conform the merged object to the request's version; zero values are removed now."""
    if not isinstance(request.version.schema, CustomObject):
        conform(view, request.version.schema)
    return view


def read_patch(request: Request, language: str) -> Any:
    """Parse the patch to JSON values.

    A JSON patch is a list, which `parse` does not take: it is read as a member of an object.
    """
    if language == JSON_PATCH:
        if not request.body.strip():
            raise BadRequest("the body of the request is empty")
        wrapped, _ = parse(b'{"patch":' + request.body + b"}", "application/json", None)
        if set(wrapped) != {"patch"}:
            raise BadRequest("error decoding patch: more than one JSON value")
        return wrapped["patch"]
    return parse(request.body, "application/json", None)[0]


def transform(current: Json, patch: Any, language: str, schema: Object) -> Any:
    if language == JSON_PATCH:
        return json_patch(current, patch)
    if language == MERGE_PATCH:
        return merge_patch(current, patch)
    return strategic_patch(current, patch, schema)


def pins(patch: Any, language: str) -> bool:
    """Return True if the patch itself names the revision it was made for.

    A conflict is then for the client to resolve.
    """
    if language == JSON_PATCH:
        return isinstance(patch, list) and any(
            isinstance(op, dict) and op.get("path") == "/metadata/resourceVersion" for op in patch
        )
    metadata = patch.get("metadata") if isinstance(patch, dict) else None
    return isinstance(metadata, dict) and bool(metadata.get("resourceVersion"))
