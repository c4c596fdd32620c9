"""Build the status and the events that a kubelet reports for a pod.

Conditions are merged by type, so a patch contains only those that change. Events are written only for pods that request
them and for images that cannot be pulled: events for every pod would double the number of writes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from zlib import crc32

from phalanx.base import resources as r
from phalanx.base.client import Client
from phalanx.base.clock import Clock, rfc3339
from phalanx.base.errors import ApiProblem
from phalanx.base.well_known import POD_SCHEDULED
from phalanx.local.nodes.references import Need
from phalanx.local.nodes.views import EVENTS, KubeletPod
from phalanx.model.kinds import Json
from phalanx.model.objects.pod import Container

RESIZE_PENDING = "PodResizePending"
NOT_READY = "ContainersNotReady"  # reason


def pod_ip(pod: KubeletPod, host_ip: str) -> str:
    """Return an address that depends on the pod only; it is not routable."""
    if pod.spec.host_network:
        return host_ip
    number = zlib.crc32(pod.metadata.uid.encode())
    return f"10.{128 + (number >> 16 & 127)}.{number >> 8 & 255}.{number & 255}"


def _condition(type_: str, status: bool, now: str, reason: str = "", message: str = "") -> Json:
    condition = {"type": type_, "status": "True" if status else "False", "lastTransitionTime": now}
    if reason:
        condition["reason"] = reason
    if message:
        condition["message"] = message
    return condition


def _container(pod: KubeletPod, container: Container, state: Json, ready: bool, restarts: int, last: Json) -> Json:
    status: Json = {
        "name": container.name,
        "image": container.image,
        "imageID": container.image,
        "containerID": f"simulated://{pod.metadata.uid}/{container.name}/{restarts}",
        "ready": ready,
        "started": "running" in state,
        "restartCount": restarts,
        "state": state,
        "lastState": last,
    }
    given = {"requests": container.resources.requests, "limits": container.resources.limits}
    status["resources"] = {name: amounts for name, amounts in given.items() if amounts}
    if container.resources.requests:
        status["allocatedResources"] = container.resources.requests
    return status


def _terminated(code: int, started: str, now: str) -> Json:
    reason = "Completed" if code == 0 else "Error"
    return {"terminated": {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now}}


def _containers(pod: KubeletPod, state: Json, ready: bool, restarts: int, last: Json | None = None) -> list[Json]:
    return [_container(pod, c, state, ready, restarts, last or {}) for c in pod.spec.containers]


def _init_containers(pod: KubeletPod, state: Json, started: str, now: str, running: bool) -> Json:
    statuses = []
    for container in pod.spec.init_containers or ():
        if container.restart_policy == "Always":
            statuses.append(_container(pod, container, state, running, 0, {}))
        else:
            statuses.append(_init_container(pod, container, started, now))
    return {"initContainerStatuses": statuses} if statuses else {}


def _init_container(pod: KubeletPod, container: Container, started: str, now: str) -> Json:
    """Build the status of an init container that succeeded, or of a sidecar that runs."""
    sidecar = container.restart_policy == "Always"
    state = {"running": {"startedAt": started}} if sidecar else _terminated(0, started, now)
    return _container(pod, container, state, True, 0, {})


def resized(pod: KubeletPod, started: str, restarts: int) -> Json:
    """Build the status of a pod whose containers now have the resources that they request."""
    pending = {"$patch": "delete", "type": RESIZE_PENDING}
    return {
        "conditions": [pending],
        "containerStatuses": _containers(pod, {"running": {"startedAt": started}}, True, restarts),
    }


def not_resized(now: str, reason: str, message: str) -> Json:
    return {"conditions": [_condition(RESIZE_PENDING, True, now, reason, message)]}


def ephemeral_running(pod: KubeletPod, now: str) -> Json:
    """Build the status that shows the ephemeral containers as running (nothing runs in them)."""
    state = {"running": {"startedAt": now}}
    statuses = [_container(pod, container, state, False, 0, {}) for container in pod.spec.ephemeral_containers or ()]
    return {"ephemeralContainerStatuses": statuses} if statuses else {}


def readiness(pod: KubeletPod, now: str) -> Json:
    """Build the Ready condition of a pod whose containers are ready."""
    return {"conditions": [{"reason": None, "message": None, **_ready(pod, now)}]}


def _ready(pod: KubeletPod, now: str) -> Json:
    closed = pod.closed_gates
    if not closed:
        return _condition("Ready", True, now)
    gates = ", ".join(closed)
    return _condition("Ready", False, now, "ReadinessGatesNotReady", f"readiness gates that are not true: {gates}")


def _readiness_conditions(pod: KubeletPod, now: str, held: bool) -> list[Json]:
    if held:
        return _not_ready(now, NOT_READY, _unready(pod))
    return [_ready(pod, now), _condition("ContainersReady", True, now)]


def _unready(pod: KubeletPod) -> str:
    return f"containers with unready status: [{' '.join(container.name for container in pod.spec.containers)}]"


def readiness_changed(pod: KubeletPod, started: str, now: str, restarts: int, held: bool) -> Json:
    """Build the status of running containers (since `started`) that became ready, or unready if `held`."""
    plain = [{"reason": None, "message": None, **condition} for condition in _readiness_conditions(pod, now, held)]
    state = {"running": {"startedAt": started}}
    return {"conditions": plain, "containerStatuses": _containers(pod, state, not held, restarts)}


def waiting(pod: KubeletPod, host_ip: str, started: str, now: str, why: Mapping[str, tuple[str, str]]) -> Json:
    """Build the status of a pod whose containers wait; why: reason and message per container, none if for a volume."""
    status: Json = {
        "phase": "Pending",
        "startTime": started,
        "conditions": _started_conditions(pod, now, _not_ready(now, NOT_READY, _unready(pod))),
    }
    inits = pod.spec.init_containers or ()
    stuck = next((at for at, c in enumerate(inits) if c.name in why or not why), len(inits))
    if inits:
        status["initContainerStatuses"] = [
            *(_init_container(pod, c, started, now) for c in inits[:stuck]),
            *(_waiting(pod, c, why if at == 0 else {}) for at, c in enumerate(inits[stuck:])),
        ]
    if stuck < len(inits):
        text = f"containers with incomplete status: [{' '.join(c.name for c in inits[stuck:])}]"
        initialized = _condition("Initialized", False, now, "ContainersNotInitialized", text)
        status["conditions"] = [initialized, *(c for c in status["conditions"] if c["type"] != "Initialized")]
        why = {}  # its containers are not looked at before
    status["containerStatuses"] = [_waiting(pod, container, why) for container in pod.spec.containers]
    return status | ({"hostIP": host_ip, "hostIPs": [{"ip": host_ip}]} if host_ip else {})


def not_pulled(pod: KubeletPod) -> dict[str, tuple[str, str]]:
    """Return reason and message per container whose image cannot be pulled."""
    text = 'Back-off pulling image "{}": ErrImagePull: an annotation says that it is missing'
    every = (*(pod.spec.init_containers or ()), *pod.spec.containers)
    return {c.name: ("ImagePullBackOff", text.format(c.image)) for c in every if c.image in pod.missing}


def _waiting(pod: KubeletPod, container: Container, why: Mapping[str, tuple[str, str]]) -> Json:
    waiting = {"reason": "PodInitializing" if pod.spec.init_containers else "ContainerCreating"}
    if container.name in why:
        waiting = dict(zip(("reason", "message"), why[container.name], strict=True))
    return {
        **_container(pod, container, {"waiting": waiting}, False, 0, {}),
        "imageID": "",
        "containerID": None,
    }


def _started_conditions(pod: KubeletPod, now: str, readiness: list[Json]) -> list[Json]:
    """Return the conditions of a pod that is initialized on its node, together with `readiness`."""
    known = any(c.type == POD_SCHEDULED and c.status == "True" for c in pod.status.conditions or ())
    # Keep the condition that the binding wrote: it has no observedGeneration.
    scheduled = {"type": POD_SCHEDULED, "status": "True"} if known else _condition(POD_SCHEDULED, True, now)
    begun = [_condition("PodReadyToStartContainers", True, now), _condition("Initialized", True, now)]
    return [*begun, *readiness, scheduled]


def running(pod: KubeletPod, host_ip: str, started: str, now: str, restarts: int = 0, *, held: bool = False) -> Json:
    """Build the status of a running pod. started: start of the pod; now: start of its containers; held: not ready."""
    state = {"running": {"startedAt": now}}
    ip = pod_ip(pod, host_ip)
    status: Json = {
        "phase": "Running",
        "startTime": started,
        "podIP": ip,
        "podIPs": [{"ip": ip}],
        "conditions": _started_conditions(pod, now, _readiness_conditions(pod, now, held)),
        "containerStatuses": _containers(pod, state, not held, restarts),
        **_init_containers(pod, state, started, now, True),
    }
    if host_ip:
        status |= {"hostIP": host_ip, "hostIPs": [{"ip": host_ip}]}
    return status


def restarting(pod: KubeletPod, code: int, started: str, now: str, restarts: int, wait: float) -> Json:
    """Build the status while a container waits for its next restart."""
    message = f"back-off {round(wait)}s restarting failed container"
    state = {"waiting": {"reason": "CrashLoopBackOff", "message": message}}
    return {
        "conditions": _not_ready(now, "ContainersNotReady", "containers with unready status"),
        "containerStatuses": _containers(pod, state, False, restarts, _terminated(code, started, now)),
    }


def restarted(pod: KubeletPod, code: int, started: str, now: str, restarts: int, held: bool) -> Json:
    """Build the status of a pod whose containers were restarted."""
    state = {"running": {"startedAt": now}}
    return {
        "conditions": _readiness_conditions(pod, now, held),
        "containerStatuses": _containers(pod, state, not held, restarts, _terminated(code, started, now)),
    }


def finished(
    pod: KubeletPod, code: int, started: str, now: str, restarts: int, reason: str = "", message: str = ""
) -> Json:
    """Build the last status of a pod: Succeeded for exit code 0, else Failed."""
    why = "PodCompleted" if code == 0 else "PodFailed"
    state = _terminated(code, started, now)
    status: Json = {
        "phase": "Succeeded" if code == 0 else "Failed",
        "conditions": _not_ready(now, why),
        "containerStatuses": _containers(pod, state, False, restarts),
        **_init_containers(pod, state, started, now, False),
    }
    if reason:
        status |= {"reason": reason, "message": message}
    return status


def rejected(now: str, reason: str, message: str) -> Json:
    return {
        "phase": "Failed",
        "reason": reason,
        "message": message,
        "startTime": now,
        "conditions": _not_ready(now, "PodFailed"),
    }


def _not_ready(now: str, reason: str, message: str = "") -> list[Json]:
    return [
        _condition("Ready", False, now, reason, message),
        _condition("ContainersReady", False, now, reason, message),
    ]


COMPONENT = "kubelet"


class KubeletEvents:
    def __init__(self, client: Client, clock: Clock) -> None:
        self._client, self._clock = client, clock

    async def started(self, pod: KubeletPod, node: str) -> None:
        if pod.metadata.annotations.get(EVENTS, "").lower() not in ("true", "1", "yes"):
            return
        for container in pod.spec.containers:
            await self._notify(pod, node, "Pulled", f'Container image "{container.image}" already present on machine')
            await self._notify(pod, node, "Created", f"Created container: {container.name}")
            await self._notify(pod, node, "Started", f"Started container {container.name}")

    async def not_pulled(self, pod: KubeletPod, node: str, images: list[str]) -> None:
        for image in images:
            await self._notify(
                pod, node, "Failed", f'Failed to pull image "{image}": an annotation says that it is missing', "Warning"
            )

    async def not_configured(self, pod: KubeletPod, node: str, absent: Mapping[Need, str]) -> None:
        for need, text in absent.items():
            if need.volume:
                message = f'MountVolume.SetUp failed for volume "{need.volume}" : {text}'
                await self._notify(pod, node, "FailedMount", message, "Warning")
            else:
                await self._notify(pod, node, "Failed", f"Error: {text}", "Warning")

    async def _notify(self, pod: KubeletPod, node: str, reason: str, message: str, type_: str = "Normal") -> None:
        meta, now = pod.metadata, self._clock.now()
        when, mark = rfc3339(now), crc32(f"{reason} {message}".encode())
        about = {"kind": "Pod", "apiVersion": "v1", "name": meta.name, "namespace": meta.namespace, "uid": meta.uid}
        body: dict[str, Any] = {
            "metadata": {"name": f"{meta.name}.{int(now * 1e6):x}{mark:08x}", "namespace": meta.namespace},
            "involvedObject": about,
            "type": type_,
            "reason": reason,
            "message": message,
            "source": {"component": COMPONENT, "host": node},
            "reportingComponent": COMPONENT,
            "reportingInstance": node,
            "firstTimestamp": when,
            "lastTimestamp": when,
            "count": 1,
        }
        with suppress(ApiProblem):  # a missing event must not delay the pod
            await self._client.create(r.EVENTS, body, meta.namespace)
