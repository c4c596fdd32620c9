"""KAI Scheduler: PodGroup of scheduling.run.ai with subgroups, named in an annotation of the pod."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from phalanx.base.client import Resource
from phalanx.base.well_known import UNSCHEDULABLE
from phalanx.kube.dialects.contract import (
    MOST_SUBGROUPS,
    NOWHERE,
    ForeignGroup,
    GroupProgress,
    InvalidGroup,
    Json,
    Translation,
    WantedTopology,
    composite,
    count,
    leaf,
    priority_class,
    spec_of,
)
from phalanx.model.objects.groups import CompositePodGroup, PodGroup

GROUP_NAME = "pod-group-name"
SUBGROUP = "kai.scheduler/subgroup-name"


class KaiDialect:
    name = "kai"
    resource = Resource("scheduling.run.ai", "v2alpha2", "podgroups", "PodGroup")
    status_paths: tuple[str, ...] = ("status",)

    def group_of(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> tuple[str, str] | None:
        name = annotations.get(GROUP_NAME)
        return (name, labels.get(SUBGROUP, "")) if name else None

    def translate(self, group: ForeignGroup) -> Translation:
        spec, name = spec_of(group), group.metadata.name
        minimum = count(spec, "minMember", 0)
        ignored: list[str] = []
        topology = _topology(spec, "spec")
        if spec.get("preemptibility") == "non-preemptible":
            ignored.append("spec.preemptibility has no effect: give the pods a priority that no other workload exceeds")
        subgroups, named = _subgroups(spec), priority_class(spec)
        if not subgroups:
            if spec.get("minSubGroup") is not None:
                raise InvalidGroup("spec.minSubGroup: there are no subGroups; add them, or use minMember")
            return Translation([leaf(group, name, minimum, topology=topology)], {"": name}, minimum, ignored, named)
        tree = _Tree(group, subgroups)
        groups = [tree.root(spec, topology), *tree.below(name)]
        if len(groups) <= len(subgroups):
            raise InvalidGroup("spec.subGroups: a parent is its own descendant; remove the cycle")
        rest = f"{name}-rest"
        leaves = {"": rest, **tree.leaves}
        return Translation([*groups, leaf(group, rest, 0)], leaves, tree.pods(""), ignored, named)

    def status(self, progress: GroupProgress) -> Json:
        status: Json = {
            "phase": _phase(progress),
            "running": progress.running,
            "succeeded": progress.succeeded,
            "failed": progress.failed,
            "pending": progress.pending,
            "schedulingConditions": [],
        }
        if progress.reason and progress.placed < max(1, progress.minimum):
            status["schedulingConditions"] = [
                {
                    "type": "UnschedulableOnNodePool",
                    "nodePool": "default",
                    "status": "True",
                    "reason": UNSCHEDULABLE,
                    "message": progress.message,
                    "lastTransitionTime": progress.since,
                }
            ]
        return status


class _Tree:
    """The subgroups of one PodGroup."""

    def __init__(self, group: ForeignGroup, subgroups: Mapping[str, Json]) -> None:
        self._group, self._subgroups = group, subgroups
        self._children: dict[str, list[str]] = {}
        for name, fields in subgroups.items():
            self._children.setdefault(fields.get("parent") or "", []).append(name)
        self.leaves: dict[str, str] = {}
        self._needed: dict[str, int] = {}  # how many children (of a leaf: pods) must start together

    def root(self, spec: Json, topology: WantedTopology) -> CompositePodGroup:
        self._needed[""] = self._of_children("", spec, "spec")
        return composite(self._group, self._group.metadata.name, self._needed[""], topology=topology)

    def _of_children(self, name: str, fields: Json, where: str) -> int:
        """Return how many children must start together; those that need no pods always count for KAI."""
        children = self._children.get(name, ())
        elastic = sum(1 for child in children if not self._minimum(child))
        return max(0, count(fields, "minSubGroup", len(children), where) - elastic)

    def _minimum(self, name: str) -> int:
        if name not in self._needed:
            self._needed[name] = 0  # for a cycle
            fields, where = self._subgroups[name], f"spec.subGroups[{name}]"
            if self._children.get(name):
                self._needed[name] = self._of_children(name, fields, where)
            else:
                self._needed[name] = count(fields, "minMember", 1, where)
        return self._needed[name]

    def below(self, root: str) -> Iterator[PodGroup | CompositePodGroup]:
        """Yield the groups of all subgroups, parents first. One that needs no pods is no child: it would count."""
        todo = [(sub, root) for sub in self._children.get("", ())]
        while todo:
            sub, parent = todo.pop(0)
            made, minimum = f"{root}-{sub}", self._minimum(sub)
            parent = parent if minimum else ""
            key = _topology(self._subgroups[sub], f"spec.subGroups[{sub}]")
            if below := self._children.get(sub):
                yield composite(self._group, made, minimum, parent=parent, topology=key)
                todo += [(child, made) for child in below]
            else:
                yield leaf(self._group, made, minimum, parent=parent, topology=key)
                self.leaves[sub] = made

    def pods(self, name: str) -> int:
        """Return how many pods start together at least."""
        children = self._children.get(name)
        if not children:
            return self._needed[name]
        needed = [pods for child in children if (pods := self.pods(child))]
        return sum(sorted(needed)[: self._needed[name]])


def _subgroups(spec: Json) -> dict[str, Json]:
    listed: Any = spec.get("subGroups") or []
    if not isinstance(listed, list) or len(listed) > MOST_SUBGROUPS:
        raise InvalidGroup(f"spec.subGroups: must be a list of at most {MOST_SUBGROUPS}; correct it")
    found: dict[str, Json] = {}
    for item in listed:
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str) or not name:
            raise InvalidGroup("spec.subGroups: every subgroup needs a name")
        if name in found:
            raise InvalidGroup(f"spec.subGroups: {name} occurs twice; rename one")
        found[name] = item
    for name, item in found.items():
        if item.get("parent") and item["parent"] not in found:
            raise InvalidGroup(f"spec.subGroups[{name}].parent: {str(item['parent'])[:63]} does not exist; correct it")
    return found


def _topology(fields: Json, where: str) -> WantedTopology:
    wanted = fields.get("topologyConstraint")
    if not isinstance(wanted, dict):
        return NOWHERE
    keys = [wanted.get(field) or "" for field in ("requiredTopologyLevel", "preferredTopologyLevel")]
    if not all(isinstance(key, str) for key in keys):
        raise InvalidGroup(f"{where}.topologyConstraint: a level must be the key of a node label; correct it")
    return WantedTopology(*keys)


def _phase(progress: GroupProgress) -> str:
    minimum = max(1, progress.minimum)
    if not progress.pending and not progress.bound and not progress.running and progress.succeeded + progress.failed:
        return "Failed" if progress.failed else "Succeeded"
    return "Running" if progress.running + progress.succeeded >= minimum else "Pending"
