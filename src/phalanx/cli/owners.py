"""Find the groups of a workload that a user names, of any kind."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection
from typing import Any

import msgspec

from phalanx.base import resources as r
from phalanx.base.client import Client, Resource
from phalanx.base.errors import ApiProblem, Forbidden, NotFound
from phalanx.base.ids import meant
from phalanx.cli.messages import plural
from phalanx.cli.output import CommandError, CommandResult
from phalanx.cli.scheduler_client import Colours, SchedulerClient, Where, require_namespace, target
from phalanx.controllers.grouping.core import GroupingRefused
from phalanx.controllers.workloads.kind import WorkloadKind
from phalanx.controllers.workloads.member import PodView
from phalanx.controllers.workloads.registry import BY_KIND, BY_NAME, group, places
from phalanx.engine.explain.values import Report, Why
from phalanx.kube.group_api import GroupApi
from phalanx.model.groups.keys import COMPOSITE, WORKLOAD, GroupKey, group_of
from phalanx.model.kinds import Json
from phalanx.model.objects import Pod

AskOne = Callable[[str, str], Awaitable[CommandResult]]  # about one pod or group: kind, name
NOT_CREATED = ("FailedCreate", "FailedWorkloadCreate", "GroupCreationFailed")  # reasons of events
CREATED = ("SuccessfulCreate", "PodGroupCreated")
MOST_PODS = 3  # of a workload without groups that are explained


async def each_root(ask_one: AskOne, what: str, where: Where) -> list[CommandResult]:
    """Return one answer for a pod or group, or one for every root group of a workload."""
    owner, _, owned = what.partition("/")
    found = BY_NAME.get(owner.partition(".")[0].lower())
    if found is None or not owned:
        return [await ask_one(*target(what))]
    connection = where.connection()
    answers: list[CommandResult] = []
    async with SchedulerClient(connection, where.scheduler) as asker:
        namespace = where.namespace or connection.namespace
        client = GroupApi(asker.client)
        body = await _existing(client, found.resource, namespace, owned)
        if finished := _finished(found, body):
            return [CommandResult(0, notes=(f"{what} in {namespace} {finished}",))]
        groups = await groups_of(client, found, namespace, owned)
        if not groups or groups[0][0] == WORKLOAD:
            groups = await _named_groups(client, found, body) or await _with_members(client, groups, body)
        if field := _suspended(body):
            resume = json.dumps(
                {"spec": {"suspend": False} if field == "spec.suspend" else {"runPolicy": {"suspend": False}}}
            )
            text = (
                f"Is suspended ({field}); `kubectl patch {what} -n {namespace} --type merge -p '{resume}'` resumes it"
            )
            answers.append(_no_pods(found.resource.kind, namespace, owned, text))
        elif _paused(body):
            resume = f"`kubectl rollout resume {found.resource.plural}/{owned} -n {namespace}` resumes it"
            text = f"Its rollout is paused (spec.paused), so it has no pods of its current template; {resume}"
            answers.append(_no_pods(found.resource.kind, namespace, owned, text))
        elif problem := await _failed_creation(client, found.resource.kind, namespace, owned):
            text = f"Its pods cannot be created: {problem}"
            answers.append(_no_pods(found.resource.kind, namespace, owned, text))
        if not groups:
            instead, groups = await _instead(client, body, found.resource.kind, namespace)
            if not answers:
                answers.append(instead)
    return [*answers, *[await ask_one(kind, name) for kind, name in groups]]


def _finished(kind: WorkloadKind, body: Json) -> str:
    """Return how a workload has ended, and what its author should know about its gang; empty while it may run."""
    for condition in (body.get("status") or {}).get("conditions") or ():
        if condition["type"] in kind.final_conditions and condition.get("status") == "True":
            facts = [part for part in (condition.get("reason"), condition.get("message")) if part]
            text = f"has ended, so none of its pods is scheduled: {', '.join([condition['type'], ': '.join(facts)])}"
            notes = kind.group(body, ()).notes if condition["type"] == "Failed" else []
            return "; ".join([text, *(note for _, note in notes)])
    return ""


def _suspended(body: Json) -> str:
    """Return the field that suspends a workload; empty if it is not suspended."""
    spec = body.get("spec") or {}
    if (spec.get("runPolicy") or {}).get("suspend"):
        return "spec.runPolicy.suspend"
    return "spec.suspend" if spec.get("suspend") else ""


def _paused(body: Json) -> bool:
    """Say whether a paused rollout keeps a Deployment from creating the pods of its current template."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    return bool(spec.get("paused")) and (status.get("updatedReplicas") or 0) < spec.get("replicas", 1)


def _no_pods(kind: str, namespace: str, name: str, headline: str) -> CommandResult:
    """Return the answer about a workload for which nothing is created."""
    item = Why(kind, namespace, name, "", False, headline, headline=headline)
    report = msgspec.to_builtins(Report(kind, namespace, name, False, [item]))
    return CommandResult(
        1, report, f"{kind.lower()}/{name} in {namespace}: {Colours()('pending', 'yellow')}\n  {headline}"
    )


async def _failed_creation(client: Client, kind: str, namespace: str, name: str) -> str:
    """Return why the last pod or group of a workload, or of a Job or set that it owns, was not created; "" if it was.

    The time of an event is that of its first occurrence.
    """
    last: dict[str, tuple[str, str]] = {}  # object -> (time, message) of its last event about creating pods
    for event in await _items(client, r.EVENTS, namespace):
        about = event.get("involvedObject") or {}
        mine = about.get("name") == name and about.get("kind") == kind
        below = str(about.get("name")).startswith(f"{name}-") and about.get("kind") in BY_KIND
        if event.get("reason") in (*NOT_CREATED, *CREATED) and (mine or below):
            message = str(event.get("message")) if event["reason"] in NOT_CREATED else ""
            key = f"{about.get('kind')}/{about.get('name')}"
            last[key] = max(last.get(key, ("", "")), (_time_of(event), message))
    return next((message for _, message in last.values() if message), "")


async def claims_not_created(client: Client, namespace: str, pods: Collection[str]) -> tuple[str, ...]:
    """Return why the claims of these pods were not created from their templates, without repeats."""
    events = (
        event
        for event in await _items(client, r.EVENTS, namespace)
        if event.get("reason") == "FailedResourceClaimCreation"
        and (about := event.get("involvedObject") or {}).get("kind") == "Pod"
        and about.get("name") in pods
    )
    return tuple(dict.fromkeys(f"no claim can be created: {event.get('message')}" for event in events))


async def not_started(client: Client, namespace: str, pods: Collection[str]) -> list[str]:
    """Return which of these pods have a node but have not started, and what their kubelet says; none if it may not."""
    try:
        found = await _items(client, r.PODS, namespace, fields="status.phase=Pending")
    except ApiProblem:
        return []
    names: dict[str, list[str]] = {}  # message of the kubelet -> pods
    for pod in found:
        if pod["metadata"]["name"] in pods and (pod.get("spec") or {}).get("nodeName"):
            names.setdefault(_waits_for(pod), []).append(pod["metadata"]["name"])
    return [
        f"{each[0]}{' and ' + plural(len(each) - 1, 'other') if len(each) > 1 else ''}: {what}"
        for what, each in names.items()
    ]


def _waits_for(pod: Json) -> str:
    status = pod.get("status") or {}
    for each in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        waiting = (each.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") and waiting["reason"] != "PodInitializing":
            message = f": {waiting['message']}" if waiting.get("message") else ""
            return f"{waiting['reason']} (container {each.get('name')}){message}"
    return "its node has not started it yet"


def _time_of(event: Json) -> str:
    series = event.get("series") or {}
    return str(series.get("lastObservedTime") or event.get("lastTimestamp") or event.get("eventTime") or "")


async def _existing(client: Client, resource: Resource, namespace: str, name: str) -> Json:
    """Return the object asked about.

    Raises CommandError, which says whether the object or its namespace is missing.
    """
    try:
        body: Json = msgspec.json.decode(await client.get(resource, name, namespace))
        return body
    except NotFound:
        pass
    await require_namespace(client, namespace)
    try:
        everywhere = await _items(client, resource, "")
    except Forbidden:  # a user of one namespace
        everywhere = []
    elsewhere = [item["metadata"]["namespace"] for item in everywhere if item["metadata"]["name"] == name]
    here = [item["metadata"]["name"] for item in everywhere if item["metadata"]["namespace"] == namespace]
    hint = f"{meant(name, here)}; see kubectl get {resource.plural} -n {namespace}"
    if elsewhere:
        hint = f"; there is one in {elsewhere[0]}: add -n {elsewhere[0]}"
    raise CommandError(f"there is no {resource.kind} {name} in {namespace}{hint}")


async def not_waiting(client: Client, namespace: str, name: str) -> str:
    """Return why our scheduler does not schedule an existing pod; empty if the pod cannot be read."""
    try:
        pod: Json = msgspec.json.decode(await client.get(r.PODS, name, namespace))
    except ApiProblem:
        return ""
    phase = (pod.get("status") or {}).get("phase")
    if phase in ("Succeeded", "Failed"):
        return f"pod {namespace}/{name} has finished: {phase}"
    spec = pod.get("spec") or {}
    scheduler, node = spec.get("schedulerName"), spec.get("nodeName")
    if node and await _missing(client, r.NODES, node):
        instead = f"delete it and create it without spec.nodeName, or create node {node}"
        return f"pod {namespace}/{name} is on node {node}, which does not exist: {instead}"
    return f"pod {namespace}/{name} is for the scheduler {scheduler!r} (spec.schedulerName), which must be asked"


async def _missing(client: Client, resource: Resource, name: str) -> bool:
    try:
        await client.get(resource, name)
    except NotFound:
        return True
    except ApiProblem:
        return False  # it may not be read
    return False


async def _instead(
    client: Client, body: Json, kind: str, namespace: str
) -> tuple[CommandResult, list[tuple[str, str]]]:
    """Return why a workload has no groups, and its pods to ask about instead."""
    name = body["metadata"]["name"]
    refused = await _warnings(client, kind, namespace, name)
    conditions = [
        f"{condition.get('reason') or condition['type']}: {condition.get('message')}"
        for condition in (body.get("status") or {}).get("conditions") or ()
        if condition.get("status") == "False" and condition.get("message") and _asks(body)
    ]
    announced = [*refused[-1:], *conditions[-1:]][:1]
    pods = [pod for pod in await _items(client, r.PODS, namespace) if _belongs(pod, body)]
    if announced:
        notes = [f"{kind.lower()}/{name} in {namespace} has no groups: {announced[0]}"]
    elif not pods and (made := BY_KIND[kind].creates) is not None:
        notes = [f"{kind.lower()}/{name} in {namespace} has no {made.kind} at the moment, so none of its pods waits"]
    elif not pods and not body.get("status") and _asks(body):
        notes = [f"{kind.lower()}/{name} in {namespace} has neither groups nor pods yet: no controller has come to it"]
    else:
        notes = [
            f"{kind.lower()}/{name} in {namespace} asks for no group: its pods are placed one by one"
            f" (docs/workloads.md says how to ask)"
        ]
    waiting = [("Pod", pod["metadata"]["name"]) for pod in pods if not (pod.get("spec") or {}).get("nodeName")]
    if len(waiting) > MOST_PODS:
        notes.append(f"{len(waiting)} of its pods wait; the first {MOST_PODS}:")
    return CommandResult(1 if announced and not waiting else 0, notes=tuple(notes)), waiting[:MOST_PODS]


async def _warnings(client: Client, kind: str, namespace: str, name: str) -> list[str]:
    return [
        f"{event.get('reason')}: {event.get('message')}"
        for event in await _items(client, r.EVENTS, namespace)
        if event.get("type") == "Warning"
        and (about := event.get("involvedObject") or {}).get("name") == name
        and about.get("kind") == kind
    ]


def _asks(body: Json) -> bool:
    try:
        return bool(group(body))
    except GroupingRefused:
        return True


def _belongs(pod: Json, owner: Json) -> bool:
    if any(ref.get("uid") == owner["metadata"]["uid"] for ref in pod["metadata"].get("ownerReferences") or ()):
        return True
    selector = (owner.get("spec") or {}).get("selector") or {}
    wanted = selector.get("matchLabels") or {}
    labels = pod["metadata"].get("labels") or {}
    if wanted and all(labels.get(key) == value for key, value in wanted.items()):
        return True
    slots = places(msgspec.convert(pod, PodView))  # made by a Job or set of it
    return any((slot.kind, slot.name) == (owner["kind"], owner["metadata"]["name"]) for slot in slots)


async def groups_of(client: Client, kind: WorkloadKind, namespace: str, name: str) -> list[tuple[str, str]]:
    """Return (kind, name) of the root groups of a workload; none if its pods are placed one by one."""
    owners = {(kind.resource.kind, name)}
    if kind.creates is not None:  # a CronJob has no groups, its Jobs have
        for item in await _items(client, kind.creates, namespace):
            if owners & _owners(item):
                owners.add((kind.creates.kind, item["metadata"]["name"]))
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
    return sorted(found)


async def _named_groups(client: Client, kind: WorkloadKind, body: Json) -> list[tuple[str, str]]:
    """Return the root groups that its pods name, or its templates while it has no pods.

    A user made these groups: the workload does not own them, and no Workload says that they belong to it.
    """
    namespace = body["metadata"]["namespace"]
    named = [pod for pod in await _items(client, r.PODS, namespace) if _belongs(pod, body)] or kind.templates(body)
    leaves = {found for each in named if (found := _group_named_by(each, namespace)) is not None}
    parents: dict[tuple[str, str], str] = {}
    for resource in (r.POD_GROUPS, r.COMPOSITE_POD_GROUPS) if leaves else ():
        for item in await _items(client, resource, namespace):
            parents[resource.kind, item["metadata"]["name"]] = item["spec"].get("parentCompositePodGroupName") or ""
    roots: set[tuple[str, str]] = set()
    for leaf in leaves:
        at = (WORKLOAD, leaf.name.partition("/")[0]) if leaf.kind == WORKLOAD else (leaf.kind, leaf.name)
        for _ in range(len(parents)):  # groups in a cycle of parents have no root
            if not parents.get(at):
                break
            at = (COMPOSITE, parents[at])
        if at[0] == WORKLOAD or at in parents:
            roots.add(at)
    return sorted(roots)


async def _with_members(client: Client, groups: list[tuple[str, str]], body: Json) -> list[tuple[str, str]]:
    """Return the Workloads about this object, or none if its pods name no group or a warning says why it has none."""
    namespace = body["metadata"]["namespace"]
    pods = await _items(client, r.PODS, namespace) if groups else ()
    if any(_belongs(pod, body) for pod in pods):
        return []
    return [] if await _warnings(client, body["kind"], namespace, body["metadata"]["name"]) else groups


def _group_named_by(body: Json, namespace: str) -> GroupKey | None:
    try:
        pod = msgspec.convert({**body, "metadata": {**(body.get("metadata") or {}), "namespace": namespace}}, Pod)
    except msgspec.ValidationError:
        return None
    return group_of(pod)


def _owners(item: dict[str, Any]) -> set[tuple[str, str]]:
    return {(owner["kind"], owner["name"]) for owner in item["metadata"].get("ownerReferences") or ()}


async def _items(client: Client, resource: Any, namespace: str, fields: str = "") -> list[dict[str, Any]]:
    try:
        items: list[dict[str, Any]] = msgspec.json.decode(await client.list(resource, namespace, fields=fields))[
            "items"
        ]
    except NotFound:
        return []
    return items
