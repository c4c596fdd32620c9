"""Job: one Workload, one PodGroup (Kubernetes 1.37, gate WorkloadWithJob).

The only part of a Job is "" (all its pods). `delegated` creates the PodGroup of a Job whose parent owns the Workload.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.base.resources import POD_GROUPS
from phalanx.base.well_known import DISRUPTION_TARGET
from phalanx.controllers.grouping.annotations import workload_annotations
from phalanx.controllers.grouping.core import (
    GROUP_TEMPLATE,
    Grouping,
    GroupingRefused,
    Json,
    Link,
    namespace_of,
    reference_to,
)
from phalanx.controllers.grouping.names import by_uid, fitting, of_template
from phalanx.controllers.grouping.parts import BASIC, LeafTemplate, disruption_of, gang, pod_group, workload
from phalanx.controllers.grouping.user_workload import COPIED, with_hand_made
from phalanx.controllers.workloads.job.policy import parse_indexes

DEFAULT_BACKOFF_LIMIT = 6  # Kubernetes' default of spec.backoffLimit
BOTH, GROUP_ONLY, NOTHING = "both", "group only", "nothing"


def mode_of(job: Json, *, cron_jobs: bool = True) -> str:
    """Return which controller creates the scheduling objects of this Job.

    Kubernetes 1.37 creates none for Jobs of a CronJob; KEP-5547 and the API design paper want one Workload per Job (the
    templated lifecycle), which `cron_jobs` selects.
    """
    template = job["spec"]["template"].get("spec") or {}
    if template.get("schedulingGroup") is not None or template.get("workloadRef") is not None:
        return NOTHING
    owner = next((ref for ref in job["metadata"].get("ownerReferences") or () if ref.get("controller")), None)
    if owner is None or (cron_jobs and owner["kind"] == "CronJob"):
        return BOTH
    return GROUP_ONLY if GROUP_TEMPLATE in (job["metadata"].get("annotations") or {}) else NOTHING


def size_of(job_spec: Json) -> int:
    """Return how many pods of a Job run at a time: at most `completions`, since a larger gang never completes."""
    parallelism = job_spec.get("parallelism")
    count = 1 if parallelism is None else int(parallelism)
    completions = job_spec.get("completions")
    return count if completions is None else min(count, int(completions))


def vacant(job: Json) -> int:
    """Return how many members of the gang will not be replaced, because fewer pods remain than run at a time.

    They have succeeded, or failed permanently.
    """
    spec, status = job["spec"], job.get("status") or {}
    if spec.get("completions") is None:
        return 0
    done = int(status.get("succeeded") or 0) + len(parse_indexes(str(status.get("failedIndexes") or "")))
    size = size_of(spec)
    return size - min(size, max(0, int(spec["completions"]) - done))


def template_name(job: str) -> str:
    """Return the template name that Kubernetes uses, shortened if it is not a DNS label."""
    return fitting(f"{job.replace('.', '-')}-pgt-0")


def leaf_of(job: Json) -> LeafTemplate:
    """Return the one template. Basic unless the Job requests a gang, in spec.scheduling or by annotation.

    A gang of spec.scheduling that names no disruptionMode gets none, as from the Job controller of Kubernetes 1.37: the
    API server then defaults it to `single`.
    """
    spec = job["spec"]
    asked: Json = spec.get("scheduling") or {}
    requested = workload_annotations(job["metadata"].get("annotations"))
    policy: Json = asked.get("schedulingPolicy") or {}
    all_pods = max(1, size_of(spec))
    if policy.get("gang") is not None:
        count = policy["gang"].get("minCount")
        chosen, mode = gang(all_pods if count is None else int(count)), None
    elif policy.get("basic") is None and requested.gang:
        if (requested.min_count or 1) > all_pods:
            raise GroupingRefused(
                f"annotation min-count {requested.min_count} is more than the {all_pods} pods of the Job"
            )
        chosen = gang(requested.min_count or all_pods)
        mode = disruption_of(chosen, requested.mode)
    else:
        chosen, mode = BASIC, None
    return LeafTemplate(
        name=template_name(job["metadata"]["name"]),
        policy=chosen,
        constraints=asked.get("schedulingConstraints") or requested.constraints,
        disruption=asked.get("disruptionMode") or requested.mode or mode,
        claims=asked.get("resourceClaims") or (),
        priority_class=(spec["template"].get("spec") or {}).get("priorityClassName") or "",
    )


def group_job(job: Json, related: Sequence[Json] = ()) -> Grouping:
    mode = mode_of(job)
    if mode == NOTHING:
        return Grouping()
    if mode == GROUP_ONLY:
        parent = parent_workload(job, related)
        return delegated(job, parent) if parent is not None else Grouping()
    meta, leaf = job["metadata"], leaf_of(job)
    name = by_uid(meta["name"], meta.get("uid", ""))
    group_name = of_template(name, leaf.name)
    group = pod_group(job, group_name, name, leaf)
    found = Grouping(
        workload=workload(job, name, [leaf]),
        groups=[group],
        links={"": Link(pod_group=group_name, template=leaf.name)},
        owned_by_workload=True,
        notes=disruption_notes(job, leaf),
    )
    return with_hand_made(job, found, related)


def disruption_notes(job: Json, leaf: LeafTemplate) -> list[tuple[str, str]]:
    """Return a note if the Job would fail when its gang is preempted, because deleted pods count as failed."""
    spec = job["spec"]
    pods, limit = size_of(spec), spec.get("backoffLimit")
    allowed = DEFAULT_BACKOFF_LIMIT if limit is None else int(limit)
    if leaf.policy.get("gang") is None or pods <= allowed or spec.get("backoffLimitPerIndex") is not None:
        return []
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or ():
        types = [pattern.get("type") for pattern in rule.get("onPodConditions") or ()]
        if rule.get("action") == "Ignore" and DISRUPTION_TARGET in types:
            return []
    text = (
        f"if this gang of {pods} pods is preempted, drained or restarted, the Job fails: each deleted pod counts "
        f"towards backoffLimit {allowed}. Set spec.podFailurePolicy with action Ignore for the pod "
        "condition DisruptionTarget"
    )
    return [("BackoffLimitBelowGangSize", text)]


def parent_workload(job: Json, workloads: Sequence[Json]) -> Json | None:
    """Return the Workload of the Job's own controller: found by controllerRef, not by name."""
    owner = next(ref for ref in job["metadata"]["ownerReferences"] if ref.get("controller"))
    group = owner["apiVersion"].rpartition("/")[0]
    for found in workloads:
        about = found["spec"].get("controllerRef") or {}
        if (about.get("apiGroup") or "", about.get("kind"), about.get("name")) == (group, owner["kind"], owner["name"]):
            return found
    return None


def delegated(job: Json, parent: Json, *, shared: bool = False) -> Grouping:
    """Return a PodGroup from the template that the parent names. Nested templates are supported, beyond 1.37.

    Kubernetes names the PodGroup by Workload and template alone, so that two Jobs of one template conflict; `shared`
    adds the Job's name.
    """
    wanted = job["metadata"]["annotations"][GROUP_TEMPLATE]
    template = find_template(parent["spec"], wanted)
    if template is None:
        raise GroupingRefused(
            f"Workload {parent['metadata']['name']} has no podGroupTemplate {wanted!r}; correct the annotation "
            f"{GROUP_TEMPLATE}",
            "FailedWorkloadCompilation",
        )
    workload_name = parent["metadata"]["name"]
    name = of_template(workload_name, f"{job['metadata']['name']}-{wanted}" if shared else wanted)
    spec = {"workloadRef": {"workloadName": workload_name, "templateName": wanted}}
    spec |= {key: template[key] for key in COPIED if template.get(key) is not None}
    group = {
        "apiVersion": POD_GROUPS.api_version,
        "kind": POD_GROUPS.kind,
        "metadata": {"name": name, "namespace": namespace_of(job), "ownerReferences": [reference_to(job)]},
        "spec": spec,
    }
    return Grouping(groups=[group], links={"": Link(pod_group=name, template=wanted)})


def find_template(node: Json, name: str) -> Json | None:
    for template in node.get("podGroupTemplates") or ():
        if template["name"] == name:
            found: Json = template
            return found
    for composite in node.get("compositePodGroupTemplates") or ():
        inner = find_template(composite, name)
        if inner is not None:
            return inner
    return None
