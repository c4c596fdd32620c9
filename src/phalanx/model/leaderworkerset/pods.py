"""Labels, environment and affinity that the pod webhook of LeaderWorkerSet adds to leaders and workers.

Pure. The API server calls it for every new pod with the labels of a set, also for one that a user creates. The
controller that makes pods calls it before, because it needs the labels to find their group. A second call changes
nothing.
"""

from __future__ import annotations

from phalanx.base.well_known import REQUIRED_AFFINITY
from phalanx.model.annotation_values import MAX_INT32, BadValue, whole_number
from phalanx.model.kinds import Json
from phalanx.model.leaderworkerset.names import (
    EXCLUSIVE,
    GROUP_INDEX,
    GROUP_KEY,
    GROUPED,
    LEADER_NAME,
    NAME,
    SIZE,
    SUBDOMAIN_POLICY,
    SUBGROUP_EXCLUSIVE,
    SUBGROUP_INDEX,
    SUBGROUP_KEY,
    SUBGROUP_SIZE,
    SUBGROUP_TYPE,
    WORKER_INDEX,
    annotation,
    group_key,
    label,
    subgroup_index,
    subgroup_key,
)
from phalanx.model.leaderworkerset.tpu import add_tpu_environment
from phalanx.model.rules.placement import places_exclusively


def is_ours(pod: Json) -> bool:
    return bool(label(pod, NAME))


def is_leader(pod: Json) -> bool:
    return label(pod, WORKER_INDEX) == "0"


def is_grouped(pod: Json) -> bool:
    """Return True if a leader was created with a group; its workers follow it, even if the request changed."""
    return annotation(pod, GROUPED) == "true"


def mark_grouped(pod: Json, grouped: bool) -> None:
    """Write whether a new pod has a group. Ignore our annotation in templates of earlier versions."""
    notes = pod["metadata"].setdefault("annotations", {})
    notes.pop(GROUPED, None)
    if grouped:
        notes[GROUPED] = "true"


def complete_pod(pod: Json, namespace: str) -> None:
    """Default a pod before it is created. Raises BadValue if its name, labels or annotations cannot be read."""
    if not annotation(pod, SIZE):
        raise BadValue(f"a pod of a LeaderWorkerSet needs the annotation {SIZE}")
    size = whole_number(annotation(pod, SIZE), 1, MAX_INT32)
    if is_leader(pod):
        _complete_leader(pod, namespace)
    else:
        _complete_worker(pod, size)
    if not label(pod, GROUP_INDEX):
        raise BadValue(f"a worker of a LeaderWorkerSet needs the label {GROUP_INDEX}")
    add_tpu_environment(pod, size)
    _environment(pod, namespace)


def _ordinal(pod: Json) -> int:
    name = str(pod["metadata"].get("name") or "")
    parent, _, index = name.rpartition("-")
    if not parent or not index.isdecimal():
        raise BadValue(f"the name of a pod of a LeaderWorkerSet ends with an index, and {name!r} does not")
    return whole_number(index, 0, MAX_INT32)


def _complete_leader(pod: Json, namespace: str) -> None:
    meta = pod["metadata"]
    labels, name = meta["labels"], meta["name"]
    if not label(pod, GROUP_INDEX):
        labels[GROUP_INDEX] = str(_ordinal(pod))
    labels.setdefault(GROUP_KEY, group_key(namespace, name))
    if annotation(pod, SUBDOMAIN_POLICY) == "UniquePerReplica":
        pod["spec"]["subdomain"] = name
    _exclusive(pod, annotation(pod, EXCLUSIVE), GROUP_KEY)
    if annotation(pod, SUBGROUP_SIZE) and annotation(pod, SUBGROUP_TYPE) != "LeaderExcluded":
        labels.setdefault(SUBGROUP_INDEX, "0")
        labels.setdefault(SUBGROUP_KEY, subgroup_key(name, 0))
        _exclusive(pod, annotation(pod, SUBGROUP_EXCLUSIVE), SUBGROUP_KEY)


def _complete_worker(pod: Json, size: int) -> None:
    labels = pod["metadata"]["labels"]
    index = _ordinal(pod)
    labels[WORKER_INDEX] = str(index)
    subgroup_size = annotation(pod, SUBGROUP_SIZE)
    if subgroup_size:
        subgroup = subgroup_index(size, whole_number(subgroup_size, 1, MAX_INT32), index)
        labels.setdefault(SUBGROUP_INDEX, str(subgroup))
        labels.setdefault(SUBGROUP_KEY, subgroup_key(annotation(pod, LEADER_NAME), subgroup))
        _exclusive(pod, annotation(pod, SUBGROUP_EXCLUSIVE), SUBGROUP_KEY)


def _exclusive(pod: Json, topology: str, key: str) -> None:
    """Add affinity to the pod's own group and anti-affinity to others, in one domain.

    If the group has a topology, it keeps the pods together: an affinity of the first pod to later pods would block it.
    Anti-affinity keeps other groups away in both cases.
    """
    if not topology:
        return
    mine = label(pod, key)
    affinity: Json = pod["spec"].setdefault("affinity", {})
    if places_exclusively(affinity, topology):
        return
    if not is_grouped(pod):
        together = [{"key": key, "operator": "In", "values": [mine]}]
        _term(affinity.setdefault("podAffinity", {}), together, topology)
    elif key == SUBGROUP_KEY:
        return  # anti-affinity within a gang: the subgroup's topology is used instead
    apart: list[Json] = [{"key": key, "operator": "Exists"}, {"key": key, "operator": "NotIn", "values": [mine]}]
    _term(affinity.setdefault("podAntiAffinity", {}), apart, topology)


def _term(rules: Json, expressions: list[Json], topology: str) -> None:
    terms = rules.setdefault(REQUIRED_AFFINITY, [])
    term = {"labelSelector": {"matchExpressions": expressions}, "topologyKey": topology}
    if term not in terms:
        terms.append(term)


def _environment(pod: Json, namespace: str) -> None:
    spec = pod["spec"]
    leader = f"{label(pod, NAME)}-{label(pod, GROUP_INDEX)}"
    values = {
        "LWS_LEADER_ADDRESS": f"{leader}.{spec.get('subdomain', '')}.{namespace}",
        "LWS_GROUP_SIZE": annotation(pod, SIZE),
        "LWS_WORKER_INDEX": label(pod, WORKER_INDEX),
    }
    for container in [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]:
        rest = [entry for entry in container.get("env") or () if entry.get("name") not in values]
        container["env"] = [*({"name": name, "value": value} for name, value in values.items()), *rest]
