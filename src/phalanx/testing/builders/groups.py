"""Builders of PodGroups, CompositePodGroups and Workloads, and of a gang with its pods."""

from __future__ import annotations

from typing import Any, Self

from phalanx.model import objects as o
from phalanx.testing.builders.base import Builder, Json, T
from phalanx.testing.builders.pod import PodBuilder


class GroupBuilder(Builder[T]):
    """What PodGroup and CompositePodGroup share."""

    def written_by(self, manager: str, *annotations: str) -> Self:
        """Record in managedFields that this field manager has set these annotations."""
        fields: dict[str, Any] = {"f:metadata": {"f:annotations": {f"f:{key}": {} for key in annotations}}}
        self.metadata.setdefault("managedFields", []).append({"manager": manager, "fieldsV1": fields})
        return self

    def parent(self, name: str) -> Self:
        return self._spec(parentCompositePodGroupName=name)

    def from_workload(self, workload: str, template: str) -> Self:
        return self._spec(workloadRef={"workloadName": workload, "templateName": template})

    def basic(self) -> Self:
        return self._spec(schedulingPolicy={"basic": {}})

    def topology(self, key: str) -> Self:
        return self._spec(schedulingConstraints={"topology": [{"key": key}]})

    def disrupt_all(self) -> Self:
        return self._spec(disruptionMode={"all": {}})

    def disrupt_single(self) -> Self:
        return self._spec(disruptionMode={"single": {}})

    def priority(self, priority: int) -> Self:
        return self._spec(priority=priority)

    def preemption_policy(self, policy: str) -> Self:
        return self._spec(preemptionPolicy=policy)


class PodGroupBuilder(GroupBuilder[o.PodGroup]):
    api_version = "scheduling.k8s.io/v1beta1"
    kind = "PodGroup"
    view = o.PodGroup

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.basic()

    def gang(self, min_count: int) -> Self:
        return self._spec(schedulingPolicy={"gang": {"minCount": min_count}})


class CompositePodGroupBuilder(GroupBuilder[o.CompositePodGroup]):
    api_version = "scheduling.k8s.io/v1alpha3"
    kind = "CompositePodGroup"
    view = o.CompositePodGroup

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.basic()

    def gang(self, min_group_count: int) -> Self:
        return self._spec(schedulingPolicy={"gang": {"minGroupCount": min_group_count}})


class WorkloadBuilder(Builder[o.Workload]):
    """Templates take the JSON of a policy: `.template("workers", {"gang": {"minCount": 4}})`."""

    api_version = "scheduling.k8s.io/v1beta1"
    kind = "Workload"
    view = o.Workload

    def controller(self, kind: str, name: str, api_group: str = "batch") -> Self:
        return self._spec(controllerRef={"apiGroup": api_group, "kind": kind, "name": name})

    def template(self, name: str, policy: Json | None = None, **more: Any) -> Self:
        made = {"name": name, "schedulingPolicy": policy or {"basic": {}}, **more}
        return self._add("podGroupTemplates", made)

    def composite_template(self, name: str, policy: Json | None = None, **more: Any) -> Self:
        made = {"name": name, "schedulingPolicy": policy or {"basic": {}}, **more}
        return self._add("compositePodGroupTemplates", made)


class WorkloadPolicyBuilder(Builder[o.WorkloadPolicy]):
    """Fields take the JSON of a part of the spec: `.set(rescheduling={"policy": "Replace"})`."""

    api_version = "scheduling.phalanx.dev/v1alpha1"
    kind = "WorkloadPolicy"
    view = o.WorkloadPolicy

    def target(self, kind: str, name: str, api_group: str = "") -> Self:
        return self._spec(targetRef={"apiGroup": api_group, "kind": kind, "name": name})

    def set(self, **parts: Any) -> Self:
        self.spec.update(parts)
        return self


def gang(
    name: str,
    size: int,
    cpu: str | int = "1",
    priority: int | None = None,
    *,
    minimum: int | None = None,
    gpu: int = 0,
    topology: str = "",
) -> list[Any]:
    """Return builders of a PodGroup that needs `minimum` (default: all) of its pods, and of its pods `<name>-0` on."""
    group = PodGroupBuilder(name).gang(size if minimum is None else minimum)
    if topology:
        group.topology(topology)
    pods = [PodBuilder(f"{name}-{i}").group(name).cpu(cpu) for i in range(size)]
    for pod in pods if gpu else ():
        pod.gpu(gpu)
    if priority is not None:
        group.priority(priority)
        for pod in pods:
            pod.priority(priority)
    return [group, *pods]
