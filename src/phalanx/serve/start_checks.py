"""Checks at startup: does the cluster offer what the part needs; each problem is logged with a remedy."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
import yaml

from phalanx.base.client import Client, Resource
from phalanx.base.clock import Clock, parse_rfc3339
from phalanx.base.errors import ApiProblem, ConfigProblem, NotFound
from phalanx.base.resources import LEASES
from phalanx.base.well_known import PHALANX_API, PRESERVE_UNKNOWN_FIELDS
from phalanx.kube.client import HttpClient
from phalanx.kube.group_api import GroupApi
from phalanx.kube.lease import LeaseSettings
from phalanx.model.crds import definitions
from phalanx.model.kinds import Json
from phalanx.serve.settings import packaged_text

log = logging.getLogger(__name__)

Ask = Callable[[str], Awaitable[bytes]]  # GET of any path

OLDEST = (1, 29)
AGAIN = 5.0  # seconds; a new API server has no roles yet
MOST_RIGHTS = 8  # named in a line of the log
LOOK_EVERY = 60.0  # seconds between two checks of a problem that an operator may fix
_REVIEWS = Resource("authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False)
_POLICIES = "WorkloadPolicy"


def check_version(server: str, answer: bytes) -> None:
    """Raise ConfigProblem if the API server is too old. An unreadable version is accepted."""
    try:
        found = msgspec.json.decode(answer, type=dict[str, Any])
        version = tuple(int(re.match(r"\d+", str(found.get(part)))[0]) for part in ("major", "minor"))  # type: ignore[index]
    except (msgspec.DecodeError, TypeError):
        return
    if version < OLDEST:
        text = (
            f"the API server at {server} is Kubernetes {version[0]}.{version[1]}, and Phalanx needs "
            f"{OLDEST[0]}.{OLDEST[1]} or later: upgrade the cluster, or name another one with --kubeconfig FILE"
        )
        raise ConfigProblem("", text)


@dataclass(frozen=True, slots=True)
class RequiredRight:
    verb: str
    group: str
    resource: str  # with subresource: pods/binding
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        where = f" in namespace {self.namespace}" if self.namespace else ""
        return f"{self.verb} {self.resource}{f' {self.name}' if self.name else ''}{where}"


def of_lease(lease: LeaseSettings) -> tuple[RequiredRight, ...]:
    group, resource = LEASES.group, LEASES.plural
    return tuple(RequiredRight(verb, group, resource, lease.namespace, lease.name) for verb in ("get", "update"))


def of_placement(lease: str) -> tuple[RequiredRight, ...]:
    """Return the rights to the lease by which schedulers take turns. `lease`: "namespace/name", or "" without one."""
    namespace, _, name = lease.partition("/")
    verbs = ("get", "list", "watch", "update") if lease else ()
    return tuple(RequiredRight(verb, LEASES.group, LEASES.plural, namespace, name) for verb in verbs)


async def missing_rights(client: Client, rights: Sequence[RequiredRight]) -> list[RequiredRight]:
    """Return the rights that the API server denies us."""
    missing = []
    for right in rights:
        resource, _, subresource = right.resource.partition("/")
        asked = {"verb": right.verb, "group": right.group, "resource": resource, "subresource": subresource}
        asked |= {"namespace": right.namespace, "name": right.name}
        body = {"apiVersion": _REVIEWS.api_version, "kind": _REVIEWS.kind, "spec": {"resourceAttributes": asked}}
        answer = msgspec.json.decode(await client.create(_REVIEWS, body), type=dict[str, Any])
        if not (answer.get("status") or {}).get("allowed"):
            missing.append(right)
    return missing


def listed(rights: Sequence[RequiredRight], most: int) -> str:
    shown = "; ".join(str(right) for right in rights[:most])
    return shown + (f" and {len(rights) - most} more" if len(rights) > most else "")


async def report_missing_rights(client: Client, rights: Sequence[RequiredRight]) -> None:
    """Log missing rights until none is missing."""
    known: list[RequiredRight] = []
    while True:
        try:
            missing = await missing_rights(client, rights)
            if missing:
                await asyncio.sleep(AGAIN)
                missing = await missing_rights(client, rights)
        except ApiProblem as problem:
            log.debug("asking for our own rights: %s", problem)
        else:
            if missing and missing != known:
                log.error(
                    "this account may not %s: apply deploy/base/20-rbac.yaml, and run as the service account it names",
                    listed(missing, MOST_RIGHTS),
                )
            elif not missing:
                if known:
                    log.info("the rights that were missing are there")
                return
            known = missing
        await asyncio.sleep(LOOK_EVERY)


# ---- custom resources


async def outdated_resources(ask: Ask, *, native: bool) -> list[str]:
    """Return fields missing in the installed custom resources compared with this version, as "KIND lacks FIELD".

    native: Kubernetes serves the groups, so only WorkloadPolicy is needed. If no resource is installed, return nothing:
    workloads report that.
    """
    found: list[str] = []
    absent: list[str] = []
    wanted = [body for body in definitions() if not native or body["spec"]["names"]["kind"] == _POLICIES]
    for definition in wanted:
        kind = definition["spec"]["names"]["kind"]
        version = definition["spec"]["versions"][0]
        try:
            document = msgspec.json.decode(await ask(f"/openapi/v3/apis/{PHALANX_API}/{version['name']}"))
        except NotFound:
            absent.append(kind)
            continue
        served = _schema_of(document, kind)
        if served is None:
            absent.append(kind)
            continue
        lacking = list(_lacking(version["schema"]["openAPIV3Schema"], served, document))
        found += [f"{kind} lacks {path}" for path in lacking[:3]]
        if len(lacking) > 3:
            found.append(f"{kind} lacks {len(lacking) - 3} more fields")
    if found or len(absent) < len(wanted):
        found += [f"{kind} is missing" for kind in absent]
    return found


def _schema_of(document: Json, kind: str) -> Json | None:
    for schema in ((document.get("components") or {}).get("schemas") or {}).values():
        for about in schema.get("x-kubernetes-group-version-kind") or ():
            if about.get("group") == PHALANX_API and about.get("kind") == kind:
                found: Json = schema
                return found
    return None


def _lacking(wanted: Json, served: Json, document: Json, path: str = "") -> Iterator[str]:
    """Yield the fields of one schema that another lacks, without their subfields.

    document: resolves references of `served`; an API server that serves the kind itself has them.
    """
    served = _resolved(served, document)
    if served.get(PRESERVE_UNKNOWN_FIELDS):
        return
    for name, schema in (wanted.get("properties") or {}).items():
        if not path and name not in ("spec", "status"):
            continue
        at = f"{path}.{name}" if path else name
        other = (served.get("properties") or {}).get(name)
        if other is None:
            yield at
        else:
            yield from _lacking(schema, other, document, at)
    if isinstance(wanted.get("items"), dict):
        yield from _lacking(wanted["items"], served.get("items") or {}, document, f"{path}[]")


def _resolved(schema: Json, document: Json) -> Json:
    wrapped = schema.get("allOf")
    reference = schema.get("$ref") or (wrapped[0].get("$ref") if isinstance(wrapped, list) and wrapped else None)
    if not isinstance(reference, str):
        return schema
    found = ((document.get("components") or {}).get("schemas") or {}).get(reference.rpartition("/")[2])
    return found if isinstance(found, dict) else schema


async def report_outdated_resources(groups: GroupApi, ask: Ask) -> None:
    try:
        if not (groups.group or await groups.decide()):
            return
        outdated = await outdated_resources(ask, native=groups.native)
    except (ApiProblem, msgspec.DecodeError) as problem:
        log.debug("reading the schemas of %s: %s", PHALANX_API, problem)
        return
    if outdated:
        log.warning(
            "the custom resources of %s are older than this program (%s): kubectl apply -k deploy/",
            PHALANX_API,
            "; ".join(outdated),
        )


# ---- a second instance


async def other_holders(client: Client, lease: LeaseSettings, clock: Clock) -> list[tuple[str, str]]:
    """Return (namespace, holder) of valid leases with the same name in other namespaces."""
    answer = await client.list(LEASES, fields=f"metadata.name={lease.name}")
    found = []
    for item in msgspec.json.decode(answer, type=dict[str, Any]).get("items") or ():
        namespace, spec = item["metadata"]["namespace"], item.get("spec") or {}
        holder, renewed = spec.get("holderIdentity") or "", spec.get("renewTime") or ""
        if namespace == lease.namespace or not holder or not renewed:
            continue
        if clock.now() - parse_rfc3339(renewed) < max(lease.duration, float(spec.get("leaseDurationSeconds") or 0)):
            found.append((namespace, holder))
    return sorted(found)


async def report_other_holders(client: Client, lease: LeaseSettings, clock: Clock, option: str) -> NoReturn:
    """Log a second instance: leader election covers one namespace. `option`: sets the namespace."""
    known: list[tuple[str, str]] = []
    while True:
        try:
            found = await other_holders(client, lease, clock)
        except (ApiProblem, ValueError) as problem:
            log.debug("listing leases named %s: %s", lease.name, problem)
        else:
            if found and found != known:
                log.error(
                    "lease %s is also held in namespace %s: two instances act at the same time, because a lease elects"
                    " a leader within its own namespace only; give both the same %s, or stop one",
                    f"{lease.namespace}/{lease.name}",
                    ", ".join(f"{namespace} (by {holder.rpartition('_')[0] or holder})" for namespace, holder in found),
                    option,
                )
            known = found
        await asyncio.sleep(LOOK_EVERY)


async def report_lacking(
    client: HttpClient,
    groups: GroupApi,
    part: str,
    lease: LeaseSettings | None,
    clock: Clock,
    option: str,
    placement: str = "",
) -> None:
    """Log rights and resources that the cluster lacks, and a second instance.

    option: sets the lease's namespace. placement: lease by which schedulers take turns.
    """
    own = of_lease(lease) if lease is not None else ()
    cluster_wide = [right for right in rights_of(part, "any") if not right.namespace]
    await report_missing_rights(client, (*own, *cluster_wide, *of_placement(placement)))
    await report_outdated_resources(groups, lambda path: client.request("GET", path))
    if lease is not None:
        await report_other_holders(client, lease, clock, option)


PARTS = ("scheduler", "controllers")
_PLACEMENT = "phalanx-placement"  # Role of the scheduler in another namespace


def rights_of(part: str, namespace: str) -> list[RequiredRight]:
    """Return all rights of a part; those of its Role are in `namespace`."""
    found: dict[RequiredRight, None] = {}
    names = {f"phalanx-{part}", *([_PLACEMENT] if part == "scheduler" else [])}
    for role in yaml.safe_load_all(packaged_text("roles.yaml", "deploy/base/20-rbac.yaml")):
        if role and role["kind"] in ("ClusterRole", "Role") and role["metadata"]["name"] in names:
            elsewhere = role["metadata"]["name"] == _PLACEMENT
            home = role["metadata"]["namespace"] if elsewhere else namespace if role["kind"] == "Role" else ""
            found |= dict.fromkeys(right for rule in role["rules"] for right in _rights(rule, home))
    return list(found)


def _rights(rule: dict[str, Any], namespace: str) -> Iterator[RequiredRight]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames") or ("",):
                    yield RequiredRight(verb, group, resource, namespace, name)
