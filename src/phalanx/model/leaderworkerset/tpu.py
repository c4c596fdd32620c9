"""Environment of pods that request TPUs (`google.com/tpu`): the workers of the group, and the pod's index.

A leader without TPUs is no TPU worker: ids and host names begin with the first worker. With subgroups, the list has the
pod's own subgroup.
"""

from __future__ import annotations

from phalanx.model.annotation_values import MAX_INT32, BadValue, whole_number
from phalanx.model.kinds import Json
from phalanx.model.leaderworkerset.names import (
    LEADER_REQUESTS_TPUS,
    SUBGROUP_INDEX,
    SUBGROUP_SIZE,
    WORKER_INDEX,
    annotation,
    label,
)
from phalanx.model.quantity import units

RESOURCE = "google.com/tpu"
PORT = 8476  # of the first container that has none of its own
MOST_PEERS = 10_000  # containers in the list of one pod: an object has at most 1.5 MiB
HOSTS, WORKER_ID, ADDRESSES, PROCESS_PORT = (
    "TPU_WORKER_HOSTNAMES",
    "TPU_WORKER_ID",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_PORT",
)


def requests_tpus(pod_spec: Json) -> bool:
    return bool(_containers(pod_spec))


def add_tpu_environment(pod: Json, size: int) -> None:
    """Edit the containers of a pod that request TPUs; one whose author set the worker host names is left alone.

    size: pods of its group. Raises BadValue if the list of its peers would be too long.
    """
    containers = _containers(pod["spec"])
    subgroups = bool(annotation(pod, SUBGROUP_SIZE))
    if not containers or any(entry.get("name") in (HOSTS, WORKER_ID) for entry in containers[0].get("env") or ()):
        return
    if subgroups:
        containers = containers[:1]
    index = whole_number(label(pod, WORKER_INDEX), 0, MAX_INT32)
    name = str(pod["metadata"]["name"])
    leader = name if index == 0 else name.rpartition("-")[0]
    with_leader = index == 0 or annotation(pod, LEADER_REQUESTS_TPUS) == "true"
    peers = whole_number(annotation(pod, SUBGROUP_SIZE), 1, MAX_INT32) if subgroups else size
    if peers * len(containers) > MOST_PEERS:
        raise BadValue(
            f"a pod with TPUs lists its peers, and {peers} pods are too many (at most {MOST_PEERS} containers)"
        )
    if subgroups:
        names, number = _of_subgroup(pod, index, with_leader, peers)
    else:
        names, number = _of_group(index, with_leader, peers)
    hosts = [f"{leader}{name}.{pod['spec'].get('subdomain', '')}" for name in names]
    ports = [_port(container) or str(PORT + place) for place, container in enumerate(containers)]
    for place, container in enumerate(containers):
        values = {
            HOSTS: ",".join(host for host in hosts for _ in ports),
            WORKER_ID: str(number * len(containers) + place),
            "TPU_NAME": leader,
            ADDRESSES: ",".join(f"{host}:{port}" for host in hosts for port in ports),
        }
        if not _port(container):
            values[PROCESS_PORT] = ports[place]
        added = [{"name": name, "value": value} for name, value in values.items()]
        container["env"] = [*(container.get("env") or ()), *added]


def _of_group(index: int, with_leader: bool, size: int) -> tuple[list[str], int]:
    """Return what follows the leader's name in the names of all TPU pods of the group, and this pod's place."""
    names = [f"-{worker}" for worker in range(1, size)]
    return (["", *names], index) if with_leader else (names, index - 1)


def _of_subgroup(pod: Json, index: int, with_leader: bool, size: int) -> tuple[list[str], int]:
    """Return the same for the `size` pods of its subgroup."""
    subgroup = whole_number(label(pod, SUBGROUP_INDEX) or "0", 0, MAX_INT32)
    if not with_leader:
        number, subgroup = (index - 1) % size, (index - 1) // size
        first = size * subgroup + 1
        return [f"-{worker}" for worker in range(first, first + size)], number
    first = size * subgroup
    names = ["" if worker == 0 else f"-{worker}" for worker in range(first, first + size)]
    return names, index % size


def _containers(pod_spec: Json) -> list[Json]:
    every = [*(pod_spec.get("containers") or ()), *(pod_spec.get("initContainers") or ())]
    return [container for container in every if _requests(container)]


def _requests(container: Json) -> bool:
    amounts = container.get("resources") or {}
    return any(units((amounts.get(field) or {}).get(RESOURCE) or 0) for field in ("limits", "requests"))


def _port(container: Json) -> str:
    return next((str(e.get("value") or "") for e in container.get("env") or () if e.get("name") == PROCESS_PORT), "")
