"""Build the JobSet of a TrainJob and its runtime, with all fields that change its pods' requests.

In the order of the Trainer: patches of the runtime's template, then the TrainJob's settings for initializers and
trainer (image, command, environment, resources per node, processes per node).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

from phalanx.controllers.grouping.core import GroupingRefused, Json
from phalanx.model.quantity import BadQuantity, units

ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
INITIALIZERS = {"dataset": "dataset-initializer", "model": "model-initializer"}
NODE, TRAINER = "node", "trainer"
PORT = 29500
RANK = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_MERGE_KEYS = {"volumeMounts": "mountPath", "ports": "containerPort"}  # of lists; others merge by name


def resolved(job: Json, runtime: Json) -> Json:
    """Return the JobSet template (metadata and spec). Raises Refused if that is impossible."""
    try:
        return _resolved(job, runtime)
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        # CRDs of TrainJobs may accept fields of any type.
        text = f"the TrainJob or its runtime has a field of the wrong type: {problem!r}"
        raise GroupingRefused(text, "InvalidTrainJob") from problem


def _resolved(job: Json, runtime: Json) -> Json:
    template: Json = copy.deepcopy((runtime.get("spec") or {}).get("template") or {})
    spec: Json = template.setdefault("spec", {})
    parts: list[Json] = spec.setdefault("replicatedJobs", [])
    if not parts:
        raise GroupingRefused(f"runtime {runtime['metadata']['name']} has no replicatedJobs")
    for part in parts:
        pod_of(part).setdefault("containers", [])
    _apply_patches(job, template)
    _initializers(job, parts)
    _sizes(job, runtime, parts)
    _trainer(job, runtime, parts)
    return template


def ancestor_of(part: Json) -> str:
    template: Json = part.get("template") or {}
    return str(((template.get("metadata") or {}).get("labels") or {}).get(ANCESTOR) or "")


def pod_of(part: Json) -> Json:
    """Return the pod spec of a ReplicatedJob, created if missing."""
    job: Json = part.setdefault("template", {}).setdefault("spec", {})
    found: Json = job.setdefault("template", {}).setdefault("spec", {})
    return found


def _policy(runtime: Json) -> Json:
    return (runtime.get("spec") or {}).get("mlPolicy") or {}


def _launcher_is_node(policy: Json) -> bool:
    return bool((policy.get("mpi") or {}).get("runLauncherAsNode"))


def _trainers(parts: Sequence[Json]) -> list[Json]:
    """Return the ReplicatedJobs labelled as the trainer; without any, the one named `node`."""
    return [part for part in parts if ancestor_of(part) == TRAINER] or [
        part for part in parts if part["name"] == NODE and not ancestor_of(part)
    ]


def _nodes(policy: Json, parts: Sequence[Json]) -> list[Json]:
    """Return the ReplicatedJobs whose pods are the training nodes."""
    if policy.get("mpi") is None:
        return _trainers(parts)
    nodes = [part for part in parts if part["name"] == NODE]
    launchers = [part for part in _trainers(parts) if part["name"] != NODE]
    return [*launchers, *nodes] if _launcher_is_node(policy) or not nodes else nodes


def _containers(part: Json) -> list[Json]:
    """Return the containers named `node`, else the first one."""
    every: list[Json] = pod_of(part)["containers"]
    return [container for container in every if container.get("name") == NODE] or every[:1]


# -- sizes -----------------------------------------------------------------------------------------------------------


def _sizes(job: Json, runtime: Json, parts: Sequence[Json]) -> None:
    """Give the trainer as many pods as there are nodes; the Trainer runs one Job of each of its steps."""
    policy = _policy(runtime)
    asked = (job["spec"].get("trainer") or {}).get("numNodes")
    nodes = int(asked if asked is not None else policy.get("numNodes") or 1)
    sized = _nodes(policy, parts)
    for part in parts:
        spec: Json = part["template"]["spec"]
        size = spec.get("parallelism")
        if policy.get("mpi") is not None and part["name"] == NODE:
            size = max(nodes - 1, 1) if _launcher_is_node(policy) else nodes
        elif policy.get("mpi") is None and any(part is other for other in sized):
            size = nodes
        size = 1 if size is None else int(size)
        spec |= {"parallelism": size, "completions": size}
        if ancestor_of(part):
            part["replicas"] = 1
    if asked is not None and not sized:
        raise GroupingRefused("trainer.numNodes: no replicatedJob of the runtime is the trainer", "InvalidTrainJob")


# -- the trainer and its initializers --------------------------------------------------------------------------------


def _initializers(job: Json, parts: Sequence[Json]) -> None:
    for field, name in INITIALIZERS.items():
        asked: Json = (job["spec"].get("initializer") or {}).get(field) or {}
        for part in parts:
            if not asked or ancestor_of(part) != name:
                continue
            for container in pod_of(part)["containers"]:
                if container.get("name") != name:
                    continue
                uri = asked.get("storageUri")
                _set_env(container, [{"name": "STORAGE_URI", "value": uri}] if uri is not None else [])
                _set_env(container, asked.get("env") or ())
                if asked.get("secretRef"):
                    source = {"secretRef": {"name": asked["secretRef"]["name"]}}
                    container["envFrom"] = [*(container.get("envFrom") or ()), source]


def _trainer(job: Json, runtime: Json, parts: Sequence[Json]) -> None:
    policy, asked = _policy(runtime), job["spec"].get("trainer") or {}
    for part in _trainers(parts):
        for container in _containers(part):
            container |= {field: asked[field] for field in ("image", "command", "args") if asked.get(field)}
            _set_env(container, asked.get("env") or ())
    wanted = asked.get("resourcesPerNode")
    nodes = _nodes(policy, parts)
    for part in nodes:
        for container in _containers(part):
            if _launcher_is_node(policy):
                _set_env(container, asked.get("env") or ())
            if wanted:
                container["resources"] = _merge(container.get("resources") or {}, wanted)
    if wanted and not any(_containers(part) for part in nodes):
        text = "trainer.resourcesPerNode: no container of the runtime is the trainer's"
        raise GroupingRefused(text, "InvalidTrainJob")
    if policy.get("torch") is not None:
        _torch(job, policy["torch"], _trainers(parts))
    elif policy.get("mpi") is not None:
        _mpi(asked, policy["mpi"], parts)


def _torch(job: Json, policy: Json, parts: Sequence[Json]) -> None:
    """Set the number of nodes and processes for torchrun, and the address of the first node."""
    name = job["metadata"]["name"]
    for part in parts:
        for container in _containers(part):
            processes = _processes(job, policy, container)
            _set_env(
                container,
                [
                    {"name": "PET_NNODES", "value": str(part["template"]["spec"]["parallelism"])},
                    {"name": "PET_NPROC_PER_NODE", "value": processes},
                    {"name": "PET_NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": RANK}}},
                    {"name": "PET_MASTER_ADDR", "value": f"{name}-{NODE}-0-0.{name}"},
                    {"name": "PET_MASTER_PORT", "value": str(PORT)},
                ],
            )
            container["ports"] = _merge_lists("ports", container.get("ports") or [], [{"containerPort": PORT}])


def _processes(job: Json, policy: Json, container: Json) -> str:
    asked = (job["spec"].get("trainer") or {}).get("numProcPerNode")
    chosen = asked if asked is not None else policy.get("numProcPerNode", "auto")
    amounts = container.get("resources") or {}
    gpus = _gpus(amounts)
    if str(chosen) in ("auto", "gpu"):
        return str(gpus) if chosen == "gpu" and gpus else "auto" if gpus else str(_cpus(amounts))
    return str(_cpus(amounts)) if chosen == "cpu" else str(chosen)


def _mpi(asked: Json, policy: Json, parts: Sequence[Json]) -> None:
    """Set the slots per node for OpenMPI; host files and ssh keys are not created."""
    slots = asked.get("numProcPerNode") or policy.get("numProcPerNode") or 1
    for part in parts:
        if part["name"] == "launcher":
            for container in _containers(part):
                _set_env(container, [{"name": "OMPI_MCA_orte_set_default_slots", "value": str(slots)}])


def _gpus(amounts: Json) -> int:
    for holder in (amounts.get("limits") or {}, amounts.get("requests") or {}):
        for name, amount in holder.items():
            if "gpu" in name.lower():
                return _units(name, amount)
    return 0


def _cpus(amounts: Json) -> int:
    for holder in (amounts.get("requests") or {}, amounts.get("limits") or {}):
        if holder.get("cpu"):
            return max(1, _units("cpu", holder["cpu"]))
    return 1


def _units(resource: str, amount: Any) -> int:
    try:
        return units(amount)
    except BadQuantity as problem:
        text = f"the trainer's resources: {resource} {amount!r} is no quantity"
        raise GroupingRefused(text, "InvalidTrainJob") from problem


def _set_env(container: Json, wanted: Sequence[Json]) -> None:
    if wanted:
        container["env"] = _merge_lists("env", container.get("env") or [], list(wanted))


# -- patches ---------------------------------------------------------------------------------------------------------


def _apply_patches(job: Json, template: Json) -> None:
    """Merge runtimePatches, and the overrides of earlier API versions, into the template."""
    parts = {part["name"]: part for part in template["spec"]["replicatedJobs"]}
    metadata: Json = template.setdefault("metadata", {})
    for field in ("labels", "annotations"):
        if job["spec"].get(field):
            metadata[field] = {**(metadata.get(field) or {}), **job["spec"][field]}
    for patch in job["spec"].get("runtimePatches") or ():
        found: Json = (patch.get("trainingRuntimeSpec") or {}).get("template") or {}
        template["metadata"] = _merge(template["metadata"], found.get("metadata") or {})
        for entry in (found.get("spec") or {}).get("replicatedJobs") or ():
            part = _target(parts, entry.get("name") or "", "runtimePatches")
            part["template"] = _merge(part["template"], entry.get("template") or {})
    for names, patch in _overrides(job):
        for name in names or list(parts):
            part = _target(parts, name, "podTemplateOverrides")
            part["template"]["spec"]["template"] = _merge(part["template"]["spec"]["template"], patch)


def _overrides(job: Json) -> Iterator[tuple[list[str], Json]]:
    """Yield (ReplicatedJobs, pod template to merge) of both earlier forms."""
    for entry in job["spec"].get("podTemplateOverrides") or ():
        patch = {key: entry[key] for key in ("metadata", "spec") if entry.get(key)}
        yield [target.get("name") or "" for target in entry.get("targetJobs") or ()], patch
    for entry in job["spec"].get("podSpecOverrides") or ():
        patch = {key: field for key, field in entry.items() if key != "targetJobs"}
        yield [target.get("name") or "" for target in entry.get("targetJobs") or ()], {"spec": patch}


def _target(parts: dict[str, Json], name: str, where: str) -> Json:
    if name not in parts:
        known = ", ".join(parts)
        raise GroupingRefused(f"{where}: the runtime has no replicatedJob {name!r}; it has {known}", "InvalidTrainJob")
    return parts[name]


def _merge(old: Json, new: Json) -> Json:
    """Return `old` with the fields of `new`: maps merge, lists with names merge by name, other values are replaced."""
    found = dict(old)
    for key, given in new.items():
        before = found.get(key)
        if isinstance(given, dict) and isinstance(before, dict):
            found[key] = _merge(before, given)
        elif isinstance(given, list) and isinstance(before, list):
            found[key] = _merge_lists(key, before, given)
        else:
            found[key] = copy.deepcopy(given)
    return found


def _merge_lists(field: str, old: list[Any], new: list[Any]) -> list[Any]:
    key = _MERGE_KEYS.get(field, "name")
    if field == "tolerations" or not all(isinstance(item, dict) and key in item for item in [*old, *new]):
        return copy.deepcopy(new)
    merged = {item[key]: item for item in old}
    for item in new:
        # A variable or volume has one source: the new one replaces the old.
        whole = field in ("env", "volumes", "volumeMounts")
        merged[item[key]] = copy.deepcopy(item) if whole else _merge(merged.get(item[key], {}), item)
    return list(merged.values())
