"""The path grammar of the Kubernetes API: a URL path and a method become a resource, a name and a verb."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from phalanx.base.errors import MethodNotAllowed, NotFound
from phalanx.local.api.request import query_flag
from phalanx.model.kinds import Kind, Registry, Version

UNKNOWN = "the server could not find the requested resource"
NOT_ALLOWED = "the server does not allow this method on the requested resource"
_NAMESPACE_SUBRESOURCES = ("status", "finalize")


class Route(msgspec.Struct):
    group: str
    version: str
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    watch: bool = False  # the old /watch/ prefix


def parse(path: str) -> Route | None:
    """Parse the path of a resource; None if it is another path (discovery, health, unknown)."""
    parts = path.strip("/").split("/")
    if parts[0] == "api" and len(parts) > 2:
        group, version, rest = "", parts[1], parts[2:]
    elif parts[0] == "apis" and len(parts) > 3:
        group, version, rest = parts[1], parts[2], parts[3:]
    else:
        return None
    watch = rest[0] == "watch" and len(rest) > 1
    if watch:
        rest = rest[1:]
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2 and not (len(rest) == 3 and rest[2] in _NAMESPACE_SUBRESOURCES):
        namespace, rest = rest[1], rest[2:]
        if not namespace:
            return None
    if len(rest) > 3 or not all(rest):
        return None
    rest += [""] * (3 - len(rest))
    return Route(group, version, rest[0], namespace, rest[1], rest[2], watch)


CONNECTIONS = {  # subresources that connect to a container, and the kind of their options
    "exec": "PodExecOptions",
    "attach": "PodAttachOptions",
    "portforward": "PodPortForwardOptions",
    "proxy": "PodProxyOptions",
}


def resolve(registry: Registry, route: Route) -> tuple[Kind, Version]:
    """Find the kind and version of a route. Raises NotFound if it is not served there."""
    kind = registry.by_path(route.group, route.version, route.plural)
    if kind is None:
        raise NotFound(UNKNOWN)
    if kind.namespaced:
        if route.name and not route.namespace:
            raise NotFound(UNKNOWN)
    elif route.namespace:
        raise NotFound(UNKNOWN)
    connects = kind.storage_key == "pods" and route.subresource in CONNECTIONS
    if route.subresource and route.subresource not in kind.subresources and not connects:
        raise NotFound(UNKNOWN)
    return kind, kind.version(route.version)


def verb_of(method: str, route: Route, kind: Kind, query: Mapping[str, str]) -> str:
    verb = ""
    if method in ("GET", "HEAD"):
        if route.subresource:
            verb = "get"
        elif route.watch or query_flag(query, "watch"):
            verb = "watch"
        else:
            verb = "get" if route.name else "list"
    elif method == "POST":
        # POST to a named object exists for subresources only (binding, eviction, token).
        verb = "create" if bool(route.name) == bool(route.subresource) else ""
        if kind.namespaced and not route.namespace and verb:
            verb = ""
    elif method == "PUT":
        verb = "update" if route.name else ""
    elif method == "PATCH":
        verb = "patch" if route.name else ""
    elif method == "DELETE":
        verb = "delete" if route.name else "deletecollection"
        if route.subresource:
            verb = ""
    allowed = SUBRESOURCE_VERBS.get(route.subresource, ()) if route.subresource else kind.verbs
    if verb not in allowed:
        raise MethodNotAllowed(NOT_ALLOWED, group=kind.group, kind=kind.plural, name=route.name)
    return verb


SUBRESOURCE_VERBS: dict[str, tuple[str, ...]] = {
    "status": ("get", "patch", "update"),
    "scale": ("get", "patch", "update"),
    "binding": ("create",),
    "eviction": ("create",),
    "token": ("create",),
    "finalize": ("update",),
    "approval": ("get", "patch", "update"),
    "resize": ("get", "patch", "update"),
    "ephemeralcontainers": ("get", "patch", "update"),
    "log": ("get",),
    **dict.fromkeys(CONNECTIONS, ("get", "create")),
}
