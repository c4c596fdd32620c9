"""Serve discovery documents, aggregated and legacy, and OpenAPI; they are kept until the registry changes.

OpenAPI v3 has an index, and one document per group and version that clients may cache by its hash. The v2 document has
the definitions of all kinds and no paths. kubectl fetches it as a protobuf message before it sends a `kind: List` or a
kind that it does not find in v3, and fails for the whole file if there is none.
"""

from __future__ import annotations

import base64
import hashlib
import platform
import sys
from collections.abc import Callable, Mapping
from typing import Any

from phalanx import __version__
from phalanx.base.errors import NotFound
from phalanx.local.api.context import Context
from phalanx.local.api.negotiate import Form
from phalanx.local.api.request import Answer
from phalanx.local.api.route import SUBRESOURCE_VERBS, UNKNOWN
from phalanx.local.api.view import api_version, encode
from phalanx.model.kinds import SUBRESOURCE_KINDS, Kind
from phalanx.model.openapi import OpenApi
from phalanx.model.openapi_v2 import Swagger


class Discovery:
    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self._generation = -1
        self._documents: dict[tuple[str, ...], bytes] = {}

    def served(self) -> dict[str, dict[str, list[Kind]]]:
        """Return the served kinds by group and version, in the order that clients should prefer."""
        registry = self._ctx.registry
        groups: dict[str, dict[str, list[Kind]]] = {}
        for group, version in registry.group_versions():
            groups.setdefault(group, {})[version] = []
        for kind in sorted(registry.all(), key=lambda kind: kind.plural):
            for served in kind.versions:
                groups[kind.group][served.name].append(kind)
        return groups

    def _document(self, key: tuple[str, ...], make: Callable[[], Any]) -> bytes:
        if self._generation != self._ctx.registry.generation:
            self._documents.clear()
            self._generation = self._ctx.registry.generation
        document = self._documents.get(key)
        if document is None:
            document = self._documents[key] = encode(make())
        return document

    def root(self, prefix: str, form: Form, address: str, etag: str = "") -> Answer:
        """Answer a request for /api or /apis.

        The aggregated documents have an ETag, so that clients may keep them.
        """
        headers = {"Vary": "Accept"}
        if form.discovery:
            body = self._document((prefix, form.discovery), lambda: self._aggregated(prefix, form.discovery))
            headers["ETag"] = f'"{hashlib.sha256(body).hexdigest().upper()}"'
            # client-go compares this content type as text, so nothing may be added to it, and takes that of a 304 for
            # the document that it has kept.
            content_type = f"application/json;g=apidiscovery.k8s.io;v={form.discovery};as=APIGroupDiscoveryList"
            code, body = (304, b"") if etag == headers["ETag"] else (200, body)
            return Answer(code, body=body, content_type=content_type, headers=headers)
        if prefix == "api":
            return Answer(body=self._document(("api", address), lambda: self._core_versions(address)), headers=headers)
        return Answer(body=self._document(("apis",), self._group_list), headers=headers)

    def group(self, group: str) -> bytes:
        if group not in self.served() or not group:
            raise NotFound(UNKNOWN)
        return self._document(("group", group), lambda: {"kind": "APIGroup", "apiVersion": "v1", **self._group(group)})

    def resources(self, group: str, version: str) -> bytes:
        if version not in self.served().get(group, {}):
            raise NotFound(UNKNOWN)
        return self._document(("resources", group, version), lambda: self._resource_list(group, version))

    def _core_versions(self, address: str) -> dict[str, Any]:
        return {
            "kind": "APIVersions",
            "versions": list(self.served().get("", {"v1": []})),
            "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
        }

    def _group(self, group: str) -> dict[str, Any]:
        versions = [
            {"groupVersion": api_version(group, version), "version": version} for version in self.served()[group]
        ]
        return {"name": group, "versions": versions, "preferredVersion": versions[0]}

    def _group_list(self) -> dict[str, Any]:
        return {
            "kind": "APIGroupList",
            "apiVersion": "v1",
            "groups": [self._group(group) for group in self.served() if group],
        }

    def _resource_list(self, group: str, version: str) -> dict[str, Any]:
        resources: list[dict[str, Any]] = []
        for kind in self.served()[group][version]:
            entry: dict[str, Any] = {
                "name": kind.plural,
                "singularName": kind.singular or kind.kind.lower(),
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": list(kind.verbs),
            }
            if kind.short_names:
                entry["shortNames"] = list(kind.short_names)
            if kind.categories:
                entry["categories"] = list(kind.categories)
            if kind.stored:
                entry["storageVersionHash"] = _storage_version_hash(kind)
            resources.append(entry)
            for name, (sub_group, sub_version, sub_kind), verbs in _subresources(kind, version):
                sub: dict[str, Any] = {"name": f"{kind.plural}/{name}", "singularName": ""}
                sub["namespaced"] = kind.namespaced
                if (sub_group, sub_version) != (group, version):
                    sub |= {"group": sub_group, "version": sub_version}
                resources.append(sub | {"kind": sub_kind, "verbs": verbs})
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": api_version(group, version),
            "resources": resources,
        }

    def _aggregated(self, prefix: str, discovery: str) -> dict[str, Any]:
        items = []
        for group, versions in self.served().items():
            if bool(group) != (prefix == "apis"):
                continue
            items.append(
                {
                    "metadata": {"name": group, "creationTimestamp": None} if group else {"creationTimestamp": None},
                    "versions": [
                        {
                            "version": version,
                            "resources": [_aggregated_resource(kind, version) for kind in kinds],
                            "freshness": "Current",
                        }
                        for version, kinds in versions.items()
                    ],
                }
            )
        return {
            "kind": "APIGroupDiscoveryList",
            "apiVersion": f"apidiscovery.k8s.io/{discovery}",
            "metadata": {},
            "items": items,
        }


def _storage_version_hash(kind: Kind) -> str:
    """Return a hash of the version that a kind is stored in.

    It changes with nothing else and is the same text as in kube-apiserver.
    """
    announced = f"{kind.group}/{kind.storage_version}/{kind.kind}"
    return base64.b64encode(hashlib.sha256(announced.encode()).digest()[:8]).decode()


def _subresources(kind: Kind, version: str) -> list[tuple[str, tuple[str, str, str], list[str]]]:
    own = (kind.group, version, kind.kind)
    return [
        (name, SUBRESOURCE_KINDS.get(name, own), list(SUBRESOURCE_VERBS.get(name, ("get",))))
        for name in sorted(kind.subresources)
    ]


def _aggregated_resource(kind: Kind, version: str) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "resource": kind.plural,
        "responseKind": {"group": kind.group, "version": version, "kind": kind.kind},
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular or kind.kind.lower(),
        "verbs": list(kind.verbs),
    }
    if kind.short_names:
        entry["shortNames"] = list(kind.short_names)
    if kind.categories:
        entry["categories"] = list(kind.categories)
    subresources = [
        {
            "subresource": name,
            "responseKind": dict(zip(("group", "version", "kind"), response_kind, strict=True)),
            "verbs": verbs,
        }
        for name, response_kind, verbs in _subresources(kind, version)
    ]
    if subresources:
        entry["subresources"] = subresources
    return entry


KUBERNETES = "v1.37.0"
PLATFORM = f"{sys.platform}/{ {'x86_64': 'amd64', 'aarch64': 'arm64'}.get(platform.machine(), platform.machine()) }"


def version_info() -> dict[str, str]:
    major, minor, _ = KUBERNETES[1:].split(".")
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"{KUBERNETES}+phalanx-{__version__}",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "",
        "goVersion": f"python{platform.python_version()}",
        "compiler": platform.python_implementation().lower(),
        "platform": PLATFORM,
    }


ROOT = "/openapi/v3"
_V2_ASKED = "proto-openapi.spec.v2"  # kubectl takes no other form; clients write @v1.0 or .v1.0 after it
# Not the @v1.0 that clients ask with: their own parser of content types refuses it.
V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"


def openapi_v2_answer(swagger: Swagger, accept: str, etag: str) -> Answer:
    headers = {"Vary": "Accept"}
    if _V2_ASKED in accept:
        return Answer(body=swagger.message(), content_type=V2_PROTOBUF, headers=headers)
    text, digest = swagger.document()
    headers["ETag"] = f'"{digest}"'
    return Answer(304, headers=headers) if etag == headers["ETag"] else Answer(body=text, headers=headers)


def openapi_answer(documents: OpenApi, path: str, query: Mapping[str, str], etag: str) -> Answer:
    inner = path.removeprefix(ROOT).strip("/")
    if not inner:
        return Answer(body=documents.index())
    match inner.split("/"):
        case ["api", version]:
            found = documents.document("", version)
        case ["apis", group, version]:
            found = documents.document(group, version)
        case _:
            found = None
    if found is None:
        raise NotFound(UNKNOWN)
    text, digest = found
    headers = {"ETag": f'"{digest}"', "Vary": "Accept"}
    wanted = query.get("hash", "")
    if wanted and wanted != digest:
        # The client holds an old index: send it to the present document.
        return Answer(301, headers={"Location": f"{ROOT}/{inner}?hash={digest}"})
    if wanted:
        # kubectl keeps such an answer on disk instead of fetching megabytes before every apply.
        headers |= {"Cache-Control": "public, immutable", "Expires": "Fri, 31 Dec 2100 23:59:59 GMT"}
    if etag == headers["ETag"]:
        return Answer(304, headers=headers)
    return Answer(body=text, headers=headers)
