"""TrainJob (trainer.kubeflow.org/v1alpha1): a gang of the whole world size, or a gang per stage.

The runtime of a TrainJob, a (Cluster)TrainingRuntime, has a JobSet template and must be among the related objects.
Parts are the names of its ReplicatedJobs. Levels and names are those of KEP-3015:

* no step has dependencies: one gang of all pods (`<trainjob>`), an MPI launcher included;
* `scheduling.replicatedJobs` of the runtime: one group per entry, named after its targets;
* otherwise one group per stage: steps with equal dependencies start together and are one gang (an MPI launcher and its
  nodes); steps before the trainer (initializers) are basic. All stages share a CompositePodGroup (KEP-6012).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from phalanx.controllers.group_apis.contract import Replica, ReplicaPart
from phalanx.controllers.grouping.annotations import workload_annotations
from phalanx.controllers.grouping.core import Grouping, GroupingRefused, Json, Link, namespace_of
from phalanx.controllers.grouping.names import fitting, hashed
from phalanx.controllers.grouping.parts import (
    BASIC,
    LeafTemplate,
    TemplateNode,
    composite,
    disruption_of,
    gang,
    pod_group,
    workload,
)
from phalanx.controllers.grouping.user_workload import with_hand_made
from phalanx.controllers.runtime.ownership import controlled_by
from phalanx.controllers.workloads.trainjob.template import ancestor_of, pod_of, resolved

ROOT = "trainjob-root"  # template of the CompositePodGroup above the stages


@dataclass(frozen=True, slots=True)
class Step:
    name: str
    pods: int
    waits_for: tuple[str, ...]  # names of other steps
    initializer: bool
    pod_spec: Json


def group_train_job(job: Json, related: Sequence[Json] = ()) -> Grouping:
    requested = workload_annotations(job["metadata"].get("annotations"))
    if requested.gang is False:
        return Grouping()
    runtime = runtime_of(job, related)
    steps = as_made(job, steps_of(job, runtime), related)
    leaves = _leaves(job, runtime, steps)
    name = hashed(job["metadata"]["name"], "TrainJob", namespace_of(job), job["metadata"]["name"])
    staged = len(leaves) > 1 and any(step.waits_for for step in steps)
    parent = name if staged else ""
    found = Grouping(may_be_flat=staged)
    if staged:
        # Later stages have no pods until the first ones are done: a gang of all stages would wait for ever.
        root = TemplateNode(ROOT, BASIC, [leaf for leaf, _ in leaves], priority_class=leaves[0][0].priority_class)
        found.workload = workload(job, name, [root])
        found.composites.append(composite(job, name, name, root))
    else:
        found.workload = workload(job, name, [leaf for leaf, _ in leaves])
    for leaf, members in leaves:
        group = fitting(f"{name}-{leaf.name}") if len(leaves) > 1 or leaf.name != job["metadata"]["name"] else name
        found.groups.append(pod_group(job, group, name, leaf, parent=parent))
        found.links |= {step: Link(pod_group=group, template=leaf.name, parent=parent) for step in members}
    return with_hand_made(job, found, related)


def _refuse_other_topology(runtime: Json) -> None:
    """Refuse a required topology that only Volcano reads: pods would run anywhere. Raises GroupingRefused."""
    volcano: Json = (runtime["spec"].get("podGroupPolicy") or {}).get("volcano") or {}
    topology = volcano.get("networkTopology")
    if topology and topology.get("mode", "hard") == "hard":
        raise GroupingRefused(
            "the runtime's podGroupPolicy.volcano.networkTopology is read by Volcano only; "
            "write schedulingConstraints under spec.scheduling of the runtime, "
            "or give the TrainJob the annotation scheduling.phalanx.dev/topology",
            "InvalidTrainJob",
        )


def _leaves(job: Json, runtime: Json, steps: Sequence[Step]) -> list[tuple[LeafTemplate, list[str]]]:
    requested = workload_annotations(job["metadata"].get("annotations"))
    asked: Json = runtime["spec"].get("scheduling") or {}
    priority = next((name for step in steps if (name := step.pod_spec.get("priorityClassName"))), "")
    by_name = {step.name: step for step in steps}

    def leaf(name: str, members: Sequence[Step], source: Json, *, basic: bool = False) -> LeafTemplate:
        policy = source.get("schedulingPolicy") or {}
        total = sum(step.pods for step in members)
        if (policy.get("gang") or {}).get("minCount"):
            raise GroupingRefused(
                f"group {name}: minCount is computed from the TrainJob's nodes; leave it out of the runtime"
            )
        chosen = BASIC if basic or policy.get("basic") is not None else gang(max(1, total))
        constraints = source.get("schedulingConstraints") or requested.constraints
        if constraints is None and not basic:
            _refuse_other_topology(runtime)
        disruption = disruption_of(chosen, source.get("disruptionMode") or requested.mode)
        return LeafTemplate(name, chosen, constraints, disruption, (), priority)

    entries = asked.get("replicatedJobs") or []
    if entries:
        found = []
        for entry in entries:
            targets = list(entry.get("targetReplicatedJobs") or ())
            unknown = [target for target in targets if target not in by_name]
            if unknown or not targets:
                raise GroupingRefused(
                    f"the runtime's scheduling names {unknown or 'no'} replicatedJobs that do not exist"
                )
            members = [by_name[target] for target in targets]
            found.append((leaf("-".join(targets), members, entry), targets))
        return found
    if not any(step.waits_for for step in steps):
        return [(leaf(job["metadata"]["name"], steps, asked), [step.name for step in steps])]
    return [
        (leaf("-".join(step.name for step in stage), stage, asked, basic=stage[0].initializer), [s.name for s in stage])
        for stage in _stages(steps)
    ]


def _stages(steps: Sequence[Step]) -> list[list[Step]]:
    """Return the steps that start together, in the runtime's order; an initializer is a separate stage."""
    found: dict[tuple[str, ...], list[Step]] = {}
    for step in steps:
        key = (step.name,) if step.initializer else ("", *sorted(set(step.waits_for)))
        found.setdefault(key, []).append(step)
    return list(found.values())


def runtime_named(job: Json) -> tuple[str, str]:
    """Return (kind, name) of the runtime it refers to."""
    reference = (job.get("spec") or {}).get("runtimeRef") or {}
    if not isinstance(reference, dict):
        return "", ""
    return str(reference.get("kind") or "ClusterTrainingRuntime"), str(reference.get("name"))


def runtime_of(job: Json, related: Sequence[Json]) -> Json:
    """Return the runtime. Raises Refused if it is not among the related objects."""
    kind, name = runtime_named(job)
    for found in related:
        if found.get("kind") == kind and found["metadata"]["name"] == name:
            return found
    raise GroupingRefused(
        f"{kind} {name!r} is needed to know how many pods the TrainJob has; give it too",
        "RuntimeNotFound",
    )


def steps_of(job: Json, runtime: Json) -> list[Step]:
    """Return the ReplicatedJobs with their numbers of pods."""
    steps = []
    for part in resolved(job, runtime)["spec"]["replicatedJobs"]:
        replicas = part.get("replicas")
        steps.append(
            Step(
                part["name"],
                int(part["template"]["spec"]["parallelism"]) * (1 if replicas is None else int(replicas)),
                tuple(entry["name"] for entry in part.get("dependsOn") or ()),
                ancestor_of(part).endswith("-initializer"),
                pod_of(part),
            )
        )
    return steps


def as_made(job: Json, steps: list[Step], related: Sequence[Json]) -> list[Step]:
    """Return the steps with the sizes of the existing JobSet, if that is among the related objects.

    The Trainer never resizes a running JobSet, so a gang must not require nodes requested later.
    """
    uid = job["metadata"].get("uid", "")
    made = next((obj for obj in related if obj.get("kind") == "JobSet" and controlled_by(obj, uid)), None)
    if made is None:
        return steps
    sizes = {
        part["name"]: int(part["template"]["spec"].get("parallelism", 1)) * int(part.get("replicas", 1))
        for part in made["spec"]["replicatedJobs"]
    }
    return [replace(step, pods=sizes.get(step.name, step.pods)) for step in steps]


def replica_of(job: Json, runtime: Json, owner: Json) -> Replica:
    """Return, for other schedulers' providers, one PodGroup with the TrainJob's name, as the Trainer creates it."""
    steps = steps_of(job, runtime)
    return Replica(
        name=job["metadata"]["name"],
        namespace=namespace_of(job),
        owner=owner,
        min_member=sum(step.pods for step in steps),
        parts=[ReplicaPart(step.name, step.pods, step.pod_spec) for step in steps],
        annotations=job["metadata"].get("annotations") or {},
        priority_class=next((name for step in steps if (name := step.pod_spec.get("priorityClassName"))), ""),
    )
