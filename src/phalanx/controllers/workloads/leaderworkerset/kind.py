"""The descriptor of LeaderWorkerSets."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from phalanx.base import resources as r
from phalanx.controllers.grouping.core import MOST_PARTS, Grouping, Json
from phalanx.controllers.runtime.controller import Controller
from phalanx.controllers.runtime.ownership import controlled_by
from phalanx.controllers.workloads.kind import ExpectedPod, Local, Replicated, WorkloadKind, replicas_of
from phalanx.controllers.workloads.leaderworkerset.grouping import group_leader_worker_set, grouping, provider_groups
from phalanx.controllers.workloads.member import PodView, WorkloadSlot
from phalanx.model.leaderworkerset import names as n


def _pods(lws: Json, related: Sequence[Json], found: Grouping) -> Iterator[ExpectedPod]:
    size = n.size_of(lws)
    policy = lws["spec"]["leaderWorkerTemplate"].get("subGroupPolicy") or {}
    for index in range(replicas_of(lws)):
        links = {key.partition("@")[2].partition("/")[2]: link for key, link in found.links.items()
                 if key.partition("@")[0] == str(index)}  # fmt: skip
        for worker in range(size):
            template = n.worker_template(lws) if worker else n.leader_template(lws)
            part = ""
            if "" not in links and links:
                outside = worker == 0 and policy.get("subGroupPolicyType") == "LeaderExcluded"
                small = int(policy["subGroupSize"])
                inside = str(n.subgroup_index(size, small, worker)) if worker else "0"
                part = "leader" if outside else inside
            name = f"{n.leader_name(lws, index)}{f'-{worker}' if worker else ''}"
            yield ExpectedPod(name, template, links.get(part), {n.WORKER_INDEX: str(worker)})


def _templates(lws: Json) -> Iterator[Json]:
    inner = (lws.get("spec") or {}).get("leaderWorkerTemplate") or {}
    for field in ("leaderTemplate", "workerTemplate"):
        if inner.get(field) is not None:
            yield inner[field]


def _place(pod: PodView) -> WorkloadSlot | None:
    """Return parts named as in the grouping: `<replica>@<revision>[/<subgroup>]`.

    Labels of the LeaderWorkerSet's webhook may be missing, because webhooks run in no fixed order. The ordinal in the
    name of a leader (`<lws>-<g>`) or worker (`<lws>-<g>-<i>`) has the same information.
    """
    labels = pod.labels
    lws, revision = labels.get(n.NAME), labels.get(n.REVISION)
    if not lws or not revision or not pod.made_by(r.STATEFUL_SETS.kind):
        return None
    ordinals = pod.metadata.name.removeprefix(f"{lws}-").split("-")
    index = labels.get(n.GROUP_INDEX) or ordinals[0]
    if not index.isdecimal():
        return None
    replica = f"{index}@{revision}"
    subgroup = labels.get(n.SUBGROUP_INDEX)
    if subgroup is not None:
        parts: tuple[str, ...] = (f"{replica}/{subgroup}", replica)
    elif labels.get(n.WORKER_INDEX) == "0" or len(ordinals) == 1:
        parts = (f"{replica}/leader", f"{replica}/0", replica)
    else:
        parts = (replica,)
    return WorkloadSlot(r.LEADER_WORKER_SETS.kind, lws, parts)


def _present(lws: Json, leaders: Json | None, pods: Iterable[PodView]) -> list[str]:
    """Return the replicas to create, at the revision of the leaders' StatefulSet, and those with pods."""
    found: set[tuple[int, str]] = set()
    if leaders is not None and controlled_by(leaders, lws["metadata"]["uid"]):
        revision = n.label(leaders, n.REVISION)
        if revision:
            wanted = max(replicas_of(leaders), replicas_of(lws))
            found.update((index, revision) for index in range(min(wanted, MOST_PARTS)))  # more are refused
    for pod in pods:
        place = _place(pod)
        if place is not None:
            found.add(_replica(place.parts[-1]))
    return [f"{index}@{revision}" for index, revision in sorted(found)]


def _group(lws: Json, replicas: Sequence[str], related: Sequence[Json]) -> Grouping:
    return grouping(lws, [(*_replica(part), lws) for part in replicas], related)


def _replica(part: str) -> tuple[int, str]:
    index, _, revision = part.partition("@")
    return int(index), revision


def _controllers(local: Local) -> Iterable[Controller]:
    from phalanx.controllers.workloads.leaderworkerset.controller import LeaderWorkerSetController

    groups = local.groups if local.gates("PodGroupPerReplica") else None
    controller = LeaderWorkerSetController(local.caches, local.clock, local.events, groups)
    local.admission.insert(0, controller.admit)
    return [controller]


LEADER_WORKER_SET = WorkloadKind(
    resource=r.LEADER_WORKER_SETS,
    group=group_leader_worker_set,
    reports_gates=True,
    provider_groups=provider_groups,
    pods=_pods,
    templates=_templates,
    place=_place,
    aliases=("lws",),
    replicated=Replicated(r.STATEFUL_SETS, _present, _group),
    run=_controllers,
)
