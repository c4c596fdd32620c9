"""Namespaces that a caller's query may be about, and that the answer may name.

A caller that may list pods in all namespaces sees everything. Any other caller sees one namespace in which it may read
the object; objects of other namespaces are only counted in answers (`serve.queries.redaction`).
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from phalanx.base.access import Access, Right, forbidden
from phalanx.base.errors import BadRequest, Forbidden
from phalanx.base.well_known import GROUP_APIS

EVERYWHERE = Right("list", "", "pods")
_PLURALS = {
    "PodGroup": "podgroups",
    "CompositePodGroup": "compositepodgroups",
    "Workload": "workloads",
}


class _About(msgspec.Struct):
    """The part of a what-if query that names the namespace."""

    namespace: str = "default"
    drain: dict[str, msgspec.Raw] | None = None


async def of_object(access: Access | None, kind: str, namespace: str, name: str) -> str:
    """Return the namespace that the answer may name; "": all. Raises Forbidden if the caller may not get the object."""
    if access is None or await access.may(EVERYWHERE):
        return ""
    if kind == "Pod":
        rights = [Right("get", "", "pods", namespace, name)]
    else:
        rights = [Right("get", group, _PLURALS[kind], namespace, name) for group in GROUP_APIS]
    for right in rights:
        if await access.may(right):
            return namespace
    raise forbidden(access.user, rights[0])


async def of_listing(access: Access | None, query: Mapping[str, str]) -> tuple[str, str]:
    """Return the namespace to list, as the query chooses, and the one that the answer may name; "": all."""
    namespace = query.get("namespace", "")
    if access is None or await access.may(EVERYWHERE):
        return namespace, ""
    if not namespace:
        problem = forbidden(access.user, EVERYWHERE)
        raise Forbidden(f"{problem}; ask about one namespace with -n NAMESPACE", kind=problem.kind)
    await _lists(access, namespace)
    return namespace, namespace


async def of_manifests(access: Access | None, body: bytes) -> str:
    """Return the only namespace of a what-if query, in which all its manifests must be. A drain needs all
    namespaces."""
    if access is None or await access.may(EVERYWHERE):
        return ""
    try:
        about = msgspec.json.decode(body, type=_About)
    except msgspec.DecodeError as problem:
        raise BadRequest(f"the body of a what-if is not what it should be: {problem}") from None
    if about.drain is not None:
        raise forbidden(access.user, EVERYWHERE)
    await _lists(access, about.namespace)
    return about.namespace


async def of_nodes(access: Access | None) -> None:
    """Check a query about the pods of nodes, which belong to any namespace."""
    if access is not None and not await access.may(EVERYWHERE):
        raise forbidden(access.user, EVERYWHERE)


async def _lists(access: Access, namespace: str) -> None:
    right = EVERYWHERE._replace(namespace=namespace)
    if not await access.may(right):
        raise forbidden(access.user, right)
