"""OpenAPI v3 from the registry: one document per group and version, built when asked for, kept until a kind changes.

kubectl checks `create` and `apply` against the PATCH operations and prints `explain` from the schemas. OpenAPI v2 is
in `openapi_v2`. Sentences come from our tables only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import resources

import msgspec

import phalanx
from phalanx.model import tables
from phalanx.model.kinds import SUBRESOURCE_KINDS, Json, Kind, Registry, Version
from phalanx.model.openapi_schema import Schemas, component_name

_PATCHES = (
    "application/json-patch+json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
    "application/apply-patch+yaml",
)


class OpenApi:
    """The documents of one registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._generation = -1
        self._index = b""
        self._hashes: dict[tuple[str, str], str] = {}
        self._documents: dict[tuple[str, str], bytes] = {}

    def index(self) -> bytes:
        """Return the answer to GET /openapi/v3."""
        self._refresh()
        return self._index

    def document(self, group: str, version: str) -> tuple[bytes, str] | None:
        """Return (document, its hash) of a group and version; None if nothing is served there."""
        self._refresh()
        found = self._hashes.get((group, version))
        if found is None:
            return None
        body = self._documents.get((group, version))
        if body is None:
            body = self._documents[group, version] = msgspec.json.encode(build(self._registry, group, version))
        return body, found

    def _refresh(self) -> None:
        if self._generation == self._registry.generation:
            return
        self._generation = self._registry.generation
        fresh = {pair: _fingerprint(self._registry, *pair) for pair in self._registry.group_versions()}
        self._documents = {
            pair: body for pair, body in self._documents.items() if fresh.get(pair) == self._hashes.get(pair)
        }
        self._hashes = fresh
        paths = {
            path: {"serverRelativeURL": f"/openapi/v3/{path}?hash={fresh[pair]}"}
            for pair in fresh
            for path in [_root(*pair).lstrip("/")]
        }
        self._index = msgspec.json.encode({"paths": paths})


def build(registry: Registry, group: str, version: str) -> Json:
    """Build the document of one group and version."""
    schemas = Schemas()
    paths: Json = {}
    for kind, view in _served(registry, group, version):
        name = schemas.add_kind(kind, view)
        paths.update(_paths(kind, version, name, schemas))
    return {
        "openapi": "3.0.0",
        "info": {"title": "Phalanx", "version": phalanx.__version__},
        "paths": paths,
        "components": {"schemas": dict(sorted(schemas.components.items()))},
    }


def _served(registry: Registry, group: str, version: str) -> Iterator[tuple[Kind, Version]]:
    for kind in registry.all():
        if kind.group == group:
            for view in kind.versions:
                if view.name == version:
                    yield kind, view


def _root(group: str, version: str) -> str:
    return f"/apis/{group}/{version}" if group else f"/api/{version}"


@cache
def _tables_fingerprint() -> bytes:
    found = hashlib.sha512(phalanx.__version__.encode())
    folder = resources.files(tables)
    for name in tables.tables():
        found.update(folder.joinpath(name.replace("/", "_") + ".table").read_bytes())
    return found.digest()


def _fingerprint(registry: Registry, group: str, version: str) -> str:
    """Return a hash that changes whenever the document would, without building the document."""
    found = hashlib.sha512(_tables_fingerprint())
    for kind, view in _served(registry, group, version):
        facts = [kind.kind, kind.plural, kind.namespaced, sorted(kind.subresources), kind.verbs, kind.strategic]
        found.update(msgspec.json.encode([facts, view.schema.name, view.openapi]))
    return found.hexdigest().upper()


# Paths


def _paths(kind: Kind, version: str, name: str, schemas: Schemas) -> Iterator[tuple[str, Json]]:
    gvk = {"group": kind.group, "version": version, "kind": kind.kind}
    ref = {"$ref": f"#/components/schemas/{name}"}
    collection = _root(kind.group, version)
    inherited: list[Json] = []
    if kind.namespaced:
        every = f"{collection}/{kind.plural}"
        if "list" in kind.verbs:
            yield every, {"get": _operation("list", gvk, _list_of(ref), _LIST)}
        collection += "/namespaces/{namespace}"
        inherited = [_in_path("namespace")]
    collection += f"/{kind.plural}"
    item = f"{collection}/{{name}}"
    whole: Json = {}
    if "list" in kind.verbs:
        whole["get"] = _operation("list", gvk, _list_of(ref), _LIST)
    if "create" in kind.verbs:
        whole["post"] = _operation("post", gvk, ref, _WRITE, body=ref)
    if "deletecollection" in kind.verbs:
        whole["delete"] = _operation("deletecollection", gvk, {"type": "object"}, _LIST)
    yield collection, _with_parameters(whole, inherited)
    if not kind.stored:
        return
    named = [_in_path("name"), *inherited]
    one = _read_write(gvk, ref, kind)
    one["delete"] = _operation("delete", gvk, {"type": "object"}, _DELETE)
    yield item, _with_parameters(one, named)
    for sub in sorted(kind.subresources):
        other = SUBRESOURCE_KINDS.get(sub)
        if other is None:
            yield f"{item}/{sub}", _with_parameters(_read_write(gvk, ref, kind), named)
            continue
        sub_gvk = dict(zip(("group", "version", "kind"), other, strict=True))
        sub_ref = {"$ref": f"#/components/schemas/{schemas.add_body(*other)}"}
        if sub == "scale":
            yield f"{item}/{sub}", _with_parameters(_read_write(sub_gvk, sub_ref, kind), named)
        else:
            yield (
                f"{item}/{sub}",
                _with_parameters({"post": _operation("post", sub_gvk, sub_ref, _WRITE, sub_ref)}, named),
            )


def _read_write(gvk: Json, ref: Json, kind: Kind) -> Json:
    found = {"get": _operation("get", gvk, ref, _READ)}
    if "update" in kind.verbs:
        found["put"] = _operation("put", gvk, ref, _WRITE, body=ref)
    if "patch" in kind.verbs:
        patch = _operation("patch", gvk, ref, [*_WRITE, _query("force", "boolean")])
        accepted = [media for media in _PATCHES if kind.strategic or "strategic" not in media]
        patch["requestBody"] = {"content": {media: {"schema": {"type": "object"}} for media in accepted}}
        found["patch"] = patch
    return found


def _with_parameters(operations: Json, parameters: list[Json]) -> Json:
    return {**operations, "parameters": parameters} if parameters else operations


def _list_of(ref: Json) -> Json:
    return {"type": "object", "properties": {"items": {"type": "array", "items": ref}}}


def _operation(action: str, gvk: Json, answer: Json, parameters: list[Json], body: Json | None = None) -> Json:
    found: Json = {
        "parameters": parameters,
        "responses": {"200": {"description": "OK", "content": {"application/json": {"schema": answer}}}},
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": gvk,
    }
    if body is not None:
        found["requestBody"] = {"content": {"*/*": {"schema": body}}}
    return found


def _query(name: str, type_: str = "string") -> Json:
    return {"name": name, "in": "query", "schema": {"type": type_, "uniqueItems": True}}


def _in_path(name: str) -> Json:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "uniqueItems": True}}


_READ: list[Json] = [_query("pretty")]
_WRITE: list[Json] = [_query(name) for name in ("dryRun", "fieldManager", "fieldValidation", "pretty")]
_DELETE: list[Json] = [
    _query("dryRun"),
    _query("gracePeriodSeconds", "integer"),
    _query("propagationPolicy"),
    _query("pretty"),
]
_LIST: list[Json] = [
    _query("labelSelector"),
    _query("fieldSelector"),
    _query("limit", "integer"),
    _query("continue"),
    _query("resourceVersion"),
    _query("resourceVersionMatch"),
    _query("watch", "boolean"),
    _query("allowWatchBookmarks", "boolean"),
    _query("sendInitialEvents", "boolean"),
    _query("timeoutSeconds", "integer"),
]

__all__ = ["OpenApi", "build", "component_name"]
