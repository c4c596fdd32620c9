"""Which group a pod of a workload belongs to, and the JSON patch that puts it there. Pure functions.

On a real cluster other controllers make the pods, so a pod is recognised by what they wrote on it: its controller
reference, and the labels of JobSet and LeaderWorkerSet. Must never look anything up.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from phalanx.controllers import leaderworkerset_names as lws_names
from phalanx.controllers.grouping.core import GROUP_TEMPLATE, Grouping, Json, Link
from phalanx.controllers.grouping.jobset_gang_config import uses_gang_config
from phalanx.controllers.grouping.jobset_shape import EXCLUSIVE
from phalanx.controllers.grouping.names import LABEL, fitting
from phalanx.controllers.grouping.wishes import DOMAIN
from phalanx.model.groups.keys import GROUP_LABEL

SCHEDULER_NAME = f"{DOMAIN}/scheduler-name"  # on a workload: which scheduler its grouped pods go to
DEFAULT_SCHEDULER = "default-scheduler"
JOB_SET_NAME = "jobset.sigs.k8s.io/jobset-name"
REPLICATED_JOB_NAME = "jobset.sigs.k8s.io/replicatedjob-name"
MPI_JOB_NAME = "training.kubeflow.org/job-name"


class _Owner(msgspec.Struct, rename="camel", gc=False):
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    api_version: str = ""


class _Meta(msgspec.Struct, rename="camel", gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None
    deletion_timestamp: str | None = None


class _Group(msgspec.Struct, rename="camel", gc=False):
    pod_group_name: str | None = None


class _Spec(msgspec.Struct, rename="camel", gc=False):
    node_name: str = ""
    scheduler_name: str = ""
    scheduling_group: _Group | None = None
    workload_ref: dict[str, Any] | None = None


class _Status(msgspec.Struct, gc=False):
    phase: str = ""


class PodView(msgspec.Struct, gc=False):
    """The little of a pod that linking needs: a cluster has many pods."""

    metadata: _Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata.labels or {}

    @property
    def controller(self) -> _Owner | None:
        return next((ref for ref in self.metadata.owner_references or () if ref.controller), None)

    @property
    def linked(self) -> bool:
        """Whether the pod names a group already, whoever said so."""
        spec = self.spec
        return spec.scheduling_group is not None or spec.workload_ref is not None or GROUP_LABEL in self.labels

    @property
    def finished(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")


class Place(NamedTuple):
    """A workload a pod may be part of, with the names its part may have, the finest first."""

    kind: str
    name: str
    parts: tuple[str, ...]


def places(pod: PodView) -> Iterator[Place]:
    """The outermost workload first: what a JobSet says about its Jobs goes before what a Job says itself."""
    owner = pod.controller
    if owner is None:
        return
    labels = pod.labels
    if owner.kind == "Job":
        if job_set := labels.get(JOB_SET_NAME):
            if part := labels.get(REPLICATED_JOB_NAME):
                yield Place("TrainJob", job_set, (part,))  # the JobSet of a TrainJob has its name
            yield Place("JobSet", job_set, (owner.name,))
        if (mpi_job := labels.get(MPI_JOB_NAME)) and owner.name == f"{mpi_job}-launcher":
            yield Place("MPIJob", mpi_job, ("launcher",))
        yield Place("Job", owner.name, ("",))
    elif owner.kind == "StatefulSet":
        if lws := labels.get(lws_names.NAME):
            if parts := _replica_parts(pod, lws):
                yield Place("LeaderWorkerSet", lws, parts)
        else:
            yield Place("StatefulSet", owner.name, ("",))
    elif owner.kind == "ReplicaSet":
        template = labels.get("pod-template-hash")
        if template and owner.name.endswith(f"-{template}"):
            yield Place("Deployment", owner.name.removesuffix(f"-{template}"), ("",))
    elif owner.kind == "MPIJob":
        yield Place("MPIJob", owner.name, (labels.get("training.kubeflow.org/job-role", "worker"),))


def _replica_parts(pod: PodView, lws: str) -> tuple[str, ...]:
    """Parts as the grouping of LeaderWorkerSets names them: `<replica>@<revision>[/<subgroup>]`.

    Labels that the LeaderWorkerSet's own webhook sets may be missing still: webhooks run in no certain order. The
    ordinal in the name of a leader (`<lws>-<g>`) or worker (`<lws>-<g>-<i>`) says the same.
    """
    labels = pod.labels
    revision = labels.get(lws_names.REVISION)
    ordinals = pod.metadata.name.removeprefix(f"{lws}-").split("-")
    index = labels.get(lws_names.GROUP_INDEX) or ordinals[0]
    if not revision or not index.isdecimal():
        return ()
    replica = f"{index}@{revision}"
    subgroup = labels.get(lws_names.SUBGROUP_INDEX)
    if subgroup is not None:
        return (f"{replica}/{subgroup}", replica)
    leader = labels.get(lws_names.WORKER_INDEX) == "0" or len(ordinals) == 1
    return (f"{replica}/leader", f"{replica}/0", replica) if leader else (replica,)


def link_of(links: Mapping[str, Link], place: Place) -> Link | None:
    return next((links[part] for part in place.parts if part in links), None)


# -- who asks --------------------------------------------------------------------------------------------------------


def asks(workload: Json) -> bool:
    """Whether the author asked for groups at all. On a shared cluster nothing is made for those who did not.

    The grouping library decides the rest; it would also give a plain Job a group without a gang, as in Kubernetes 1.37.
    """
    annotations = workload["metadata"].get("annotations") or {}
    if any(names_group(template) for template in pod_templates(workload)):
        return False
    if any(key.startswith(f"{DOMAIN}/") and key != SCHEDULER_NAME for key in annotations):
        return True
    if GROUP_TEMPLATE in annotations or EXCLUSIVE in annotations:
        return True
    spec = workload.get("spec") or {}
    if spec.get("scheduling") is not None:
        return True
    if workload.get("kind") != "JobSet":
        return False
    templates = (item.get("template") or {} for item in spec.get("replicatedJobs") or ())
    return uses_gang_config(workload) or any(
        EXCLUSIVE in ((template.get("metadata") or {}).get("annotations") or {}) for template in templates
    )


def pod_templates(workload: Json) -> Iterator[Json]:
    spec = workload.get("spec") or {}
    if isinstance(spec.get("template"), dict):
        yield spec["template"]
    for item in spec.get("replicatedJobs") or ():
        template = ((item.get("template") or {}).get("spec") or {}).get("template")
        if template is not None:
            yield template
    for role in (spec.get("mpiReplicaSpecs") or {}).values():
        if role.get("template") is not None:
            yield role["template"]
    inner = spec.get("leaderWorkerTemplate") or {}
    for field in ("leaderTemplate", "workerTemplate"):
        if inner.get(field) is not None:
            yield inner[field]


def names_group(template: Json) -> bool:
    """Whether the author put these pods into a group by hand, with our label. (The library knows the two fields.)"""
    return GROUP_LABEL in ((template.get("metadata") or {}).get("labels") or {})


def scheduler_for(workload: Json, otherwise: str) -> str:
    """The scheduler that grouped pods of a workload go to; "" leaves them where they are."""
    asked = (workload["metadata"].get("annotations") or {}).get(SCHEDULER_NAME)
    return str(asked) if asked else otherwise


# -- names that fit into labels --------------------------------------------------------------------------------------


def fit_labels(grouping: Grouping) -> Grouping:
    """The same groups with names of at most 63 characters: longer ones do not fit into the label of a pod."""
    names = {group["metadata"]["name"]: fitting(group["metadata"]["name"]) for group in grouping.groups}
    if all(old == new for old, new in names.items()):
        return grouping
    groups = [
        {**group, "metadata": {**group["metadata"], "name": names[group["metadata"]["name"]]}}
        for group in grouping.groups
    ]
    links = {
        part: replace(link, pod_group=names.get(link.pod_group, link.pod_group))
        for part, link in grouping.links.items()
    }
    return replace(grouping, groups=groups, links=links)


# -- patches ---------------------------------------------------------------------------------------------------------


class Abilities(NamedTuple):
    """Fields of a pod that the API server keeps; where it keeps neither, a label has to do."""

    scheduling_group: bool = False  # Kubernetes 1.36 and later, with the gate GenericWorkload
    workload_ref: bool = False  # Kubernetes 1.35


def pod_patch(pod: PodView, link: Link, abilities: Abilities, scheduler: str = "") -> list[Json]:
    """JSON patch of a pod that is being created. What the pod's author said stays."""
    if pod.linked or pod.spec.node_name:
        return []
    patch: list[Json] = []
    if link.pod_group and abilities.scheduling_group:
        patch.append({"op": "add", "path": "/spec/schedulingGroup", "value": {"podGroupName": link.pod_group}})
    elif link.pod_group and len(link.pod_group) <= LABEL:
        if pod.metadata.labels is None:
            patch.append({"op": "add", "path": "/metadata/labels", "value": {GROUP_LABEL: link.pod_group}})
        else:
            path = "/metadata/labels/" + GROUP_LABEL.replace("~", "~0").replace("/", "~1")
            patch.append({"op": "add", "path": path, "value": link.pod_group})
    elif link.workload and abilities.workload_ref:
        reference = {"name": link.workload, "podGroup": link.group}
        if link.replica_key:
            reference["podGroupReplicaKey"] = link.replica_key
        patch.append({"op": "add", "path": "/spec/workloadRef", "value": reference})
    if patch and scheduler and pod.spec.scheduler_name in ("", DEFAULT_SCHEDULER) and scheduler != DEFAULT_SCHEDULER:
        patch.append({"op": "add", "path": "/spec/schedulerName", "value": scheduler})
    return patch
