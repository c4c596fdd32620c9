"""From what people write (any kind of workload) to the groups the scheduler knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import click
import msgspec

from phalanx.base.client import Client
from phalanx.base.errors import NotFound
from phalanx.cli.asking import Asker, connection_of, target
from phalanx.controllers import resources as r
from phalanx.controllers.workloads.kind import WorkloadKind
from phalanx.controllers.workloads.registry import BY_NAME
from phalanx.kube.group_api import GroupApi

# Asks about one pod or group (kind, name, namespace, kubeconfig, context, scheduler, output); answers the exit code.
AskOne = Callable[[str, str, str, str, str, str, str], Awaitable[int]]


async def each_root(
    ask_one: AskOne, what: str, namespace: str, kubeconfig: str, context: str, scheduler: str, output: str
) -> int:
    """One question for a pod or group, or one for every root group of a workload; the worst answer is the exit code."""
    owner, _, owned = what.partition("/")
    found = BY_NAME.get(owner.partition(".")[0].lower())
    if found is None or not owned:
        return await ask_one(*target(what), namespace, kubeconfig, context, scheduler, output)
    connection = connection_of(kubeconfig, context)
    async with Asker(connection, scheduler) as asker:
        groups = await groups_of(GroupApi(asker.client), found, namespace or connection.namespace, owned)
    codes = []
    for number, (group_kind, group) in enumerate(groups):
        if number and output == "text":
            click.echo("")
        codes.append(await ask_one(group_kind, group, namespace, kubeconfig, context, scheduler, output))
    return max(codes)


async def groups_of(client: Client, kind: WorkloadKind, namespace: str, name: str) -> list[tuple[str, str]]:
    """(kind, name) of the root groups of a workload; raises a usage error where it has none."""
    owners = {(kind.resource.kind, name)}
    if kind.makes is not None:  # a CronJob has no groups, its Jobs have
        for item in await _items(client, kind.makes, namespace):
            if owners & _owners(item):
                owners.add((kind.makes.kind, item["metadata"]["name"]))
    workloads = await _items(client, r.WORKLOADS, namespace)
    mine = {
        item["metadata"]["name"]
        for item in workloads
        if ((ref := item["spec"].get("controllerRef") or {}).get("kind"), ref.get("name")) in owners
    }
    found: list[tuple[str, str]] = []
    for resource in (r.COMPOSITE_POD_GROUPS, r.POD_GROUPS):
        for item in await _items(client, resource, namespace):
            spec = item["spec"]
            belongs = owners & _owners(item) or (spec.get("workloadRef") or {}).get("workloadName") in mine
            if belongs and not spec.get("parentCompositePodGroupName"):
                found.append((resource.kind, item["metadata"]["name"]))
    if not found:
        found = [("Workload", workload) for workload in sorted(mine)]  # KEP-4671: groups without objects
    if not found:
        raise click.UsageError(f"{kind.resource.kind} {name} in {namespace} has no groups; ask about one of its pods")
    return sorted(found)


def _owners(item: dict[str, Any]) -> set[tuple[str, str]]:
    return {(owner["kind"], owner["name"]) for owner in item["metadata"].get("ownerReferences") or ()}


async def _items(client: Client, resource: Any, namespace: str) -> list[dict[str, Any]]:
    try:
        items: list[dict[str, Any]] = msgspec.json.decode(await client.list(resource, namespace))["items"]
    except NotFound:
        return []
    return items
