"""The AdmissionCheck controller for Kueue: a workload is admitted only if there is a place for all its pods.

An AdmissionCheck with `controllerName: scheduling.phalanx.dev/placement` is ours. For every Workload of Kueue with
quota and a Pending check, the scheduler is asked for a place for the whole workload, with the counts, node labels and
tolerations of the admission. If there is one, it is reserved and the check becomes Ready. Otherwise the check stays
Pending with the reason; after `RETRY_AFTER` seconds it becomes Retry, so that Kueue gives the quota to other workloads
and retries later.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import msgspec

from phalanx.base.client import Client, Resource
from phalanx.base.clock import Clock, parse_rfc3339, rfc3339
from phalanx.base.errors import Conflict, NotFound
from phalanx.model.groups.keys import KUEUE_REQUIRED_TOPOLOGY
from phalanx.model.kinds import Json

CONTROLLER = "scheduling.phalanx.dev/placement"
VERSIONS = ("v1beta2", "v1beta1")
RETRY_AFTER = 60.0  # seconds that a workload without a place keeps its quota
PLACE_SECONDS = 600.0  # seconds a place stays reserved without pods
MOST_MESSAGE = 1024
PODSET_GROUP = "kueue.x-k8s.io/podset-group-name"
_GROUP_API = {"PodGroup": "scheduling.k8s.io/v1beta1", "CompositePodGroup": "scheduling.k8s.io/v1alpha3"}


class WantedPlace(msgspec.Struct, frozen=True):
    """The manifests of a workload that may be admitted."""

    namespace: str
    name: str
    uid: str
    until: float
    manifests: list[Json]
    owner_uids: list[str]
    owners: list[str]

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class FoundPlace(msgspec.Struct, frozen=True):
    placed: bool
    message: str = ""
    nodes: Sequence[str] = ()


class Places(Protocol):
    """Requests of this controller to the scheduler."""

    scheduler_names: Sequence[str]

    async def reserve(self, wanted: WantedPlace) -> FoundPlace: ...
    def release(self, namespace: str, name: str) -> None: ...
    def held(self, namespace: str, name: str) -> bool: ...
    def lost(self) -> Iterable[tuple[str, str]]: ...  # since the last call: (namespace/name, why)
    @property
    def ready(self) -> bool: ...


class PlacementCheck:
    def __init__(self, client: Client, places: Places, clock: Clock) -> None:
        self._client = client
        self._places = places
        self._clock = clock
        self._version = ""
        self._asked: set[str] = set()  # workloads that have or had a place

    async def reconcile(self) -> None:
        """Answer all our Pending checks, and release places that are not needed any more."""
        if not self._places.ready:
            return
        checks = {c["metadata"]["name"]: c for c in await self._list("admissionchecks", "AdmissionCheck", False)
                  if (c.get("spec") or {}).get("controllerName") == CONTROLLER}  # fmt: skip
        for check in checks.values():
            await self._activate(check)
        lost = dict(self._places.lost())
        present = set()
        for workload in await self._list("workloads", "Workload") if checks or self._asked else ():
            key = _key(workload)
            states = (workload.get("status") or {}).get("admissionChecks") or ()
            state = next((each for each in states if each["name"] in checks), None)
            if state is not None and _wants_place(workload):
                present.add(key)
                await self._check(workload, state, lost.get(key, ""))
        for key in self._asked - present:
            self._asked.discard(key)
            self._places.release(*key.split("/", 1))

    async def _check(self, workload: Json, state: Json, lost: str) -> None:
        """Bring the admission check of one Workload to what its reservation says."""
        key = _key(workload)
        if not any(_counts(workload).values()):
            if state["state"] == "Pending":
                await self._answer(workload, state, "Ready", "it has no pods")
            return
        admitted = _condition(workload, "Admitted")
        if state["state"] == "Ready":
            if lost and not admitted:
                await self._answer(workload, state, "Pending", f"its place was lost: {lost}")
            elif key not in self._asked and self._begins(state):
                self._asked.add(key)  # a new leader reserves the place again
                await self._places.reserve(await self._wanted(workload, _seconds(state) + PLACE_SECONDS))
            elif key in self._asked and not admitted and not self._places.held(*key.split("/", 1)):
                await self._answer(workload, state, "Pending", "its place was not used in time; looking again")
            return
        if state["state"] != "Pending":
            return
        if not self._ours(workload):
            text = f"its pods name another scheduler than {', '.join(self._places.scheduler_names)}"
            await self._answer(workload, state, "Ready", text)
            return
        found = await self._places.reserve(await self._wanted(workload, self._clock.now() + PLACE_SECONDS))
        if found.placed:
            self._asked.add(key)
            nodes = ", ".join(found.nodes[:3]) + (f" and {len(found.nodes) - 3} more" if len(found.nodes) > 3 else "")
            await self._answer(workload, state, "Ready", f"a place is reserved on {nodes}")
        elif self._clock.now() - _since(workload) >= RETRY_AFTER:
            await self._answer(workload, state, "Retry", found.message)
        else:
            await self._answer(workload, state, "Pending", found.message)

    def _begins(self, state: Json) -> bool:
        return self._clock.now() - _seconds(state) < PLACE_SECONDS

    def _ours(self, workload: Json) -> bool:
        names = {
            pod_set["template"]["spec"].get("schedulerName") or "default-scheduler"
            for pod_set in workload["spec"]["podSets"]
        }
        return names <= set(self._places.scheduler_names)

    # ---- Kueue's objects

    async def _list(self, plural: str, kind: str, namespaced: bool = True) -> list[Json]:
        versions = (self._version,) if self._version else VERSIONS
        for version in versions:
            try:
                answer = await self._client.list(Resource("kueue.x-k8s.io", version, plural, kind, namespaced))
            except NotFound:
                if version == versions[-1]:
                    self._version = ""
                    raise
                continue
            self._version = version
            return msgspec.json.decode(answer)["items"] or []
        return []

    async def _activate(self, check: Json) -> None:
        """Set the condition Active: Kueue uses only active checks."""
        if _condition(check, "Active"):
            return
        resource = Resource("kueue.x-k8s.io", self._version, "admissionchecks", "AdmissionCheck", namespaced=False)
        condition = {
            "type": "Active",
            "status": "True",
            "reason": "Active",
            "message": "Phalanx looks for places",
            "lastTransitionTime": rfc3339(self._clock.now()),
            "observedGeneration": check["metadata"].get("generation", 1),
        }
        patch = {"status": {"conditions": [condition]}}
        await self._client.patch(resource, check["metadata"]["name"], patch, subresource="status")

    async def _answer(self, workload: Json, state: Json, to: str, message: str) -> None:
        message = message[:MOST_MESSAGE]
        if state["state"] == to and state.get("message") == message:
            return
        metadata = workload["metadata"]
        made = {**state, "state": to, "message": message}
        if state["state"] != to:
            made["lastTransitionTime"] = rfc3339(self._clock.now())
        checks = [made if each["name"] == state["name"] else each for each in workload["status"]["admissionChecks"]]
        patch = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": {"admissionChecks": checks}}
        resource = Resource("kueue.x-k8s.io", self._version, "workloads", "Workload")
        try:
            await self._client.patch(resource, metadata["name"], patch, metadata["namespace"], subresource="status")
        except (Conflict, NotFound):
            return  # changed: checked again later

    # ---- manifests of a workload

    async def _wanted(self, workload: Json, until: float) -> WantedPlace:
        metadata = workload["metadata"]
        owners = metadata.get("ownerReferences") or ()
        flavors = {flavor["metadata"]["name"]: flavor.get("spec") or {}
                   for flavor in await self._list("resourceflavors", "ResourceFlavor", False)}  # fmt: skip
        return WantedPlace(
            metadata["namespace"],
            metadata["name"],
            metadata["uid"],
            until,
            manifests_of(workload, flavors),
            [owner["uid"] for owner in owners],
            [owner["name"] for owner in owners],
        )


def manifests_of(workload: Json, flavors: dict[str, Json]) -> list[Json]:
    """Return the groups and pods of a workload as Kueue will start it.

    Each pod set is a gang. Several pod sets are a tree, in which those of one `podset-group-name` are a group in one
    domain. All are of one priority, as groups must be; nothing is evicted for a place.
    """
    root, assigned, counts = workload["metadata"]["name"], _assigned(workload), _counts(workload)
    sets = [pod_set for pod_set in workload["spec"]["podSets"] if counts[_name(pod_set)]]
    together: dict[str, list[Json]] = {}  # podset-group-name -> its pod sets; a pod set without one is alone
    for pod_set in sets:
        name = _requested(pod_set, "podSetGroupName", PODSET_GROUP)
        together.setdefault(f"group {name}" if name else _name(pod_set), []).append(pod_set)
    found: list[Json] = []
    priority = _priority_class(sets)
    if len(together) > 1:
        found.append(_composite(root, workload, len(together), priority))
    for number, some in enumerate(together.values()):
        parent = root if len(together) > 1 else ""
        required = _required(some[0])
        if len(some) > 1:
            above, parent = parent, f"{root}-group-{number}"
            more = {**priority, **_within(required), **_below(above)}
            found.append(_composite(parent, workload, len(some), more))
            required = ""
        for pod_set in some:
            more = {**priority, **_within(required), **_below(parent)}
            name = _name(pod_set)
            found += _gang(workload, pod_set, counts[name], assigned.get(name, {}), flavors, more)
    return found


def _name(pod_set: Json) -> str:
    return str(pod_set.get("name") or "main")


def _assigned(workload: Json) -> dict[str, Json]:
    """Return what Kueue assigned to each pod set."""
    admission = (workload.get("status") or {}).get("admission") or {}
    return {each["name"]: each for each in admission.get("podSetAssignments") or ()}


def _counts(workload: Json) -> dict[str, int]:
    """Return the number of pods of each pod set; 0 for workers that are added later."""
    assigned = _assigned(workload)
    found = {}
    for pod_set in workload["spec"]["podSets"]:
        count = assigned.get(_name(pod_set), {}).get("count")
        found[_name(pod_set)] = pod_set["count"] if count is None else count
    return found


def _gang(
    workload: Json, pod_set: Json, count: int, assignment: Json, flavors: dict[str, Json], more: Json
) -> Iterator[Json]:
    """Yield the group of a pod set and its pods. `more`: further fields of the group."""
    namespace, name = workload["metadata"]["namespace"], _name(pod_set)
    group = f"{workload['metadata']['name']}-{name}"
    policy: Json = {"schedulingPolicy": {"gang": {"minCount": count}}}
    yield _made("PodGroup", group, workload, {**policy, **more})
    spec = _spec(pod_set, assignment, flavors, _updates(workload, name))
    spec["priorityClassName"] = more.get("priorityClassName") or ""
    spec["schedulingGroup"] = {"podGroupName": group}
    template = pod_set["template"].get("metadata") or {}
    domains = _assigned_domains(assignment)
    for number in range(count):
        if number < len(domains):
            spec = {**spec, "nodeSelector": {**(spec.get("nodeSelector") or {}), **domains[number]}}
        about = {"name": f"{group}-{number}", "namespace": namespace}
        about |= {key: template[key] for key in ("labels", "annotations") if template.get(key)}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec}


def _assigned_domains(assignment: Json) -> list[dict[str, str]]:
    """Return the node selector of each pod by Kueue's own topology assignment; empty if it made none."""
    topology = assignment.get("topologyAssignment") or {}
    found: list[dict[str, str]] = []
    for part in topology.get("slices") or ():
        counts = part["podCounts"]
        for number in range(part["domainCount"]):
            values = [_value(each, number) for each in part["valuesPerLevel"]]
            pods = counts["universal"] if "universal" in counts else counts["individual"][number]
            found += [dict(zip(topology["levels"], values, strict=True))] * pods
    return found


def _value(values: Json, number: int) -> str:
    """Return the label value of a domain of a slice at one level."""
    if "universal" in values:
        return str(values["universal"])
    each = values["individual"]
    return f"{each.get('prefix') or ''}{each['roots'][number]}{each.get('suffix') or ''}"


def _priority_class(pod_sets: Iterable[Json]) -> Json:
    """Return the priority class of all pods as a field; none if they differ."""
    names = {each["template"]["spec"].get("priorityClassName") or "" for each in pod_sets}
    name = names.pop() if len(names) == 1 else ""
    return {"priorityClassName": name} if name else {}


def _composite(name: str, workload: Json, children: int, more: Json) -> Json:
    policy: Json = {"schedulingPolicy": {"gang": {"minGroupCount": children}}}
    return _made("CompositePodGroup", name, workload, {**policy, **more})


def _made(kind: str, name: str, workload: Json, spec: Json) -> Json:
    """Return an object of a group. A group in a tree names a Workload, which need not exist."""
    metadata = {"name": name, "namespace": workload["metadata"]["namespace"]}
    reference = {"workloadRef": {"workloadName": workload["metadata"]["name"], "templateName": "kueue"}}
    return {"apiVersion": _GROUP_API[kind], "kind": kind, "metadata": metadata, "spec": {**reference, **spec}}


def _within(topology_key: str) -> Json:
    return {"schedulingConstraints": {"topology": [{"key": topology_key}]}} if topology_key else {}


def _below(parent: str) -> Json:
    return {"parentCompositePodGroupName": parent} if parent else {}


def _required(pod_set: Json) -> str:
    return _requested(pod_set, "required", KUEUE_REQUIRED_TOPOLOGY)


def _requested(pod_set: Json, field: str, annotation: str) -> str:
    """Return a part of the topology request; a Workload created by a user may have only the annotation."""
    annotations = (pod_set["template"].get("metadata") or {}).get("annotations") or {}
    return (pod_set.get("topologyRequest") or {}).get(field) or annotations.get(annotation) or ""


def _spec(pod_set: Json, assignment: Json, flavors: dict[str, Json], updates: Iterable[Json]) -> Json:
    """Return the pod's spec with the additions of Kueue at the start of the workload."""
    spec: Json = copy.deepcopy(pod_set["template"]["spec"])
    spec.pop("schedulingGates", None)
    spec.setdefault("containers", [])
    selector = dict(spec.get("nodeSelector") or {})
    tolerations = list(spec.get("tolerations") or ())
    for name in dict.fromkeys((assignment.get("flavors") or {}).values()):
        flavor = flavors.get(name, {})
        selector |= flavor.get("nodeLabels") or {}
        tolerations += flavor.get("tolerations") or ()
    for update in updates:
        selector |= update.get("nodeSelector") or {}
        tolerations += update.get("tolerations") or ()
    if selector:
        spec["nodeSelector"] = selector
    if tolerations:
        spec["tolerations"] = tolerations
    return spec


def _updates(workload: Json, name: str) -> list[Json]:
    """Return the additions of other checks to the pods of a pod set."""
    checks = workload["status"].get("admissionChecks") or ()
    return [u for check in checks for u in check.get("podSetUpdates") or () if u.get("name") == name]


def _wants_place(workload: Json) -> bool:
    gone = workload["metadata"].get("deletionTimestamp") or (workload["spec"].get("active") is False)
    return not gone and _condition(workload, "QuotaReserved") and not _condition(workload, "Finished")


def _condition(obj: Json, type_: str) -> bool:
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(each["type"] == type_ and each["status"] == "True" for each in conditions)


def _since(workload: Json) -> float:
    """Return when it got its quota."""
    for each in workload["status"].get("conditions") or ():
        if each["type"] == "QuotaReserved":
            return _time(each.get("lastTransitionTime"))
    return 0.0


def _seconds(state: Json) -> float:
    return _time(state.get("lastTransitionTime"))


def _time(text: str | None) -> float:
    try:
        return parse_rfc3339(text or "")
    except ValueError:
        return 0.0


def _key(obj: Json) -> str:
    return f"{obj['metadata']['namespace']}/{obj['metadata']['name']}"
