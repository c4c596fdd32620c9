"""Manage the scheduling objects of a Job: created before its first pod, kept during suspension, resized with it.

As in Kubernetes 1.37 (gate WorkloadWithJob), with two improvements: a Job whose parent promised a Workload waits for
it instead of running ungrouped, and a group deleted under a running Job is created again.
"""

from __future__ import annotations

from typing import NamedTuple

from phalanx.base.errors import ApiProblem
from phalanx.base.resources import POD_GROUPS
from phalanx.controllers.grouping.core import GROUP_TEMPLATE, Grouping, GroupingRefused, Link
from phalanx.controllers.grouping.ungrouped_pods import without_ungrouped
from phalanx.controllers.grouping.user_workload import made_by_hand
from phalanx.controllers.runtime.controller import Json
from phalanx.controllers.runtime.groups import Groups
from phalanx.controllers.runtime.ownership import controlled_by, controller_of
from phalanx.controllers.runtime.pods import active, group_of
from phalanx.controllers.workloads.job.grouping import (
    BOTH,
    GROUP_ONLY,
    NOTHING,
    delegated,
    group_job,
    mode_of,
    parent_workload,
)
from phalanx.controllers.workloads.job.tally import deleted_for_good

NAME = "job-controller"


class Membership(NamedTuple):
    link: Link | None = None
    reference: Json | None = None  # owner reference to the PodGroup for each pod
    wait: bool = False  # no pods may be created yet


NOT_GROUPED = Membership()
WAIT = Membership(wait=True)


class JobGroups:
    def __init__(self, groups: Groups) -> None:
        self._groups = groups

    async def membership(self, job: Json, pods: list[Json]) -> Membership:
        """Return what new pods of the Job must have. API failures are recorded as Events and raised."""
        try:
            mode = mode_of(job)
            if mode == NOTHING:
                await self._adopt(job)
                return NOT_GROUPED
            return await (self._own(job, pods) if mode == BOTH else self._delegated(job, pods, mode))
        except GroupingRefused as refused:
            self._notify(
                job, "FailedWorkloadCompilation", f"Failed to compile Workload for Job {_name(job)}: {refused}"
            )
            return WAIT

    async def _own(self, job: Json, pods: list[Json]) -> Membership:
        uid = job["metadata"]["uid"]
        about = self._groups.for_owner(job)
        workloads = [found for found in about if controlled_by(found, uid)]
        if len(workloads) > 1:
            self._notify(job, "AmbiguousWorkload", f"Job {_name(job)} has several Workloads; delete all but one")
            return NOT_GROUPED
        by_hand = made_by_hand(job, about)
        grouping = group_job(job, about)
        wired = any(group_of(pod) == grouping.links[""].pod_group for pod in pods)
        if not workloads and not wired and not is_new(job, pods):
            return NOT_GROUPED  # started without groups: stays so
        if workloads and by_hand is None:
            templates = workloads[0]["spec"].get("podGroupTemplates") or []
            if len(templates) != 1:
                raise GroupingRefused(
                    f"Workload {_name(workloads[0])} has {len(templates)} PodGroupTemplates, want exactly 1"
                )
        grouping = without_ungrouped(grouping, _at_once(job), pods, deleted_for_good(job, pods))
        try:
            if by_hand is not None:
                await self._groups.adopt(job, by_hand)  # a user's Workload for this Job: it is deleted with it
            in_use = any(group_of(pod) == grouping.links[""].pod_group and active(pod) for pod in pods)
            await self._groups.ensure(job, grouping, NAME, announce=True, in_use=in_use)
            for reason, text in grouping.notes if not workloads else ():
                self._notify(job, reason, text)
        except ApiProblem as problem:
            self._notify(job, "FailedWorkloadCreate", f"Failed to create Workload for Job {_name(job)}: {problem}")
            problem.reported = True
            raise
        return self._joined(job, grouping)

    async def _delegated(self, job: Json, pods: list[Json], mode: str) -> Membership:
        assert mode == GROUP_ONLY
        owner = controller_of(job)
        assert owner is not None
        about = {
            "apiVersion": owner["apiVersion"],
            "kind": owner["kind"],
            "metadata": {"namespace": job["metadata"]["namespace"], "name": owner["name"]},
        }
        parent = parent_workload(job, self._groups.for_owner(about))
        if parent is None:
            if not is_new(job, pods):
                return NOT_GROUPED
            template = job["metadata"]["annotations"][GROUP_TEMPLATE]
            text = f"Job {_name(job)} waits for a Workload of {owner['kind']} {owner['name']} with template {template}"
            self._notify(job, "WaitingForWorkload", text)
            return WAIT
        grouping = delegated(job, parent)
        known = self._groups.pod_groups.get(job["metadata"]["namespace"], grouping.links[""].pod_group)
        if known is not None and not controlled_by(known, job["metadata"]["uid"]):
            grouping = delegated(job, parent, shared=True)
        link = grouping.links[""].pod_group
        known = self._groups.pod_groups.get(job["metadata"]["namespace"], link)
        if known is None and not is_new(job, pods) and not any(group_of(pod) == link for pod in pods):
            return NOT_GROUPED
        try:
            await self._groups.ensure(job, grouping, NAME, announce=True)
        except GroupingRefused:  # another Job of this template was created first
            grouping = delegated(job, parent, shared=True)
            await self._groups.ensure(job, grouping, NAME, announce=True)
        return self._joined(job, grouping)

    def _joined(self, job: Json, grouping: Grouping) -> Membership:
        link = grouping.links[""]
        group = self._groups.pod_groups.get(job["metadata"]["namespace"], link.pod_group)
        if group is None:
            return WAIT
        reference = {
            "apiVersion": POD_GROUPS.api_version,
            "kind": POD_GROUPS.kind,
            "name": link.pod_group,
            "uid": group["metadata"]["uid"],
        }
        return Membership(link, reference)

    async def _adopt(self, job: Json) -> None:
        """Adopt a user's Workload for this Job that its pods name: it is deleted with the Job."""
        named = (job["spec"]["template"].get("spec") or {}).get("workloadRef")
        if named is None or controller_of(job) is not None:
            return
        for workload in self._groups.for_owner(job):
            if workload["metadata"]["name"] == named["name"]:
                await self._groups.adopt(job, workload)

    def _notify(self, job: Json, reason: str, note: str) -> None:
        self._groups.events.warning(job, NAME, reason, note)


def _at_once(job: Json) -> int:
    """Return how many of its pods run at the same time."""
    parallelism, completions = job["spec"].get("parallelism"), job["spec"].get("completions")
    found = 1 if parallelism is None else int(parallelism)
    return found if completions is None else min(found, int(completions))


def is_new(job: Json, pods: list[Json]) -> bool:
    """Return True if the Job has never started: only then are scheduling objects created."""
    status = job.get("status") or {}
    if pods or status.get("startTime") or status.get("succeeded") or status.get("failed"):
        return False
    return not any(entry["type"] == "Suspended" for entry in status.get("conditions") or ())


def _name(obj: Json) -> str:
    return str(obj["metadata"]["name"])
