"""ProvisioningRequests (autoscaling.x-k8s.io/v1): request all nodes of a gang from an autoscaler at once.

Every group that lacks nodes gets one request with the pod templates of its pending pods. The spec of a request is
immutable: if the pods change, or the request failed, its booking expired or its capacity was revoked while the group
is pending, it is deleted and created again under another name. It is deleted when its group lacks no nodes. Pods name
the request in an annotation, so that the autoscaler does not scale for each pod as well.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from phalanx.base.client import Client, Resource
from phalanx.base.clock import Clock, parse_rfc3339
from phalanx.base.errors import AlreadyExists, ConfigProblem, NotFound
from phalanx.base.ids import hash_of
from phalanx.base.resources import PODS
from phalanx.base.well_known import SERVICE_TOKEN_PREFIX
from phalanx.model.kinds import Json

REQUESTS = Resource("autoscaling.x-k8s.io", "v1", "provisioningrequests", "ProvisioningRequest")
TEMPLATES = Resource("", "v1", "podtemplates", "PodTemplate")
CLASSES = ("best-effort-atomic-scale-up.autoscaling.x-k8s.io", "check-capacity.autoscaling.x-k8s.io")
CONSUMES = "autoscaling.x-k8s.io/consume-provisioning-request"  # annotation of pods
CLASS = "autoscaling.x-k8s.io/provisioning-class-name"  # annotation of pods
OWNER = "scheduling.phalanx.dev/provisions-for"  # label of requests and templates: hash of the group and its pods
GROUP = "scheduling.phalanx.dev/group"  # annotation of requests: kind/namespace/name of the group
ATTEMPT = "scheduling.phalanx.dev/attempt"  # annotation of requests: counts from 1
MOST_POD_SETS = 32  # of one request, by its definition
FIRST_BACKOFF = 60.0  # seconds after a failed request; doubled each time
LONGEST_BACKOFF = 1800.0
_ENDED = ("Failed", "BookingExpired", "CapacityRevoked")  # conditions after which a request provides no nodes
_OF_ONE_POD = ("nodeName", "hostname", "priority", "preemptionPolicy", "schedulingGates", "schedulingGroup")

log = logging.getLogger(__name__)


class PodSet(msgspec.Struct, frozen=True):
    """Equal pending pods: their number, and one of them."""

    count: int
    example: str


class LackingGroup(msgspec.Struct, frozen=True):
    """A group that lacks nodes, with its pending pods."""

    kind: str
    namespace: str
    name: str
    uid: str
    pod_sets: Sequence[PodSet]
    pods: Sequence[str]

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


Lacking = Callable[[], Awaitable[Sequence[LackingGroup] | None]]  # None: not known now


def class_name(text: str) -> str:
    """Return the full name of a provisioning class. Raises ConfigProblem."""
    known = {name.partition(".")[0]: name for name in CLASSES}
    name = known.get(text, text)
    if "." not in name:
        raise ConfigProblem("--provisioning-requests", f"{text!r} is not a class; known are {', '.join(CLASSES)}")
    return name


class ProvisioningRequests:
    def __init__(self, client: Client, class_: str, lacking: Lacking, clock: Clock) -> None:
        self._client = client
        self._class = class_
        self._lacking = lacking
        self._clock = clock
        self._consumed: dict[str, set[str]] = {}  # request -> pods that name it

    async def reconcile(self) -> None:
        """Create, replace and delete requests so that they match the groups that lack nodes."""
        groups = await self._lacking()
        if groups is None:
            return
        requests: dict[str, list[Json]] = {}
        for request in msgspec.json.decode(await self._client.list(REQUESTS, labels=OWNER))["items"] or ():
            requests.setdefault(request["metadata"].get("annotations", {}).get(GROUP, ""), []).append(request)
        for group in groups:
            await self._reconcile_group(group, requests.pop(group.key, []))
        for unused in requests.values():
            for request in unused:
                await self._delete(request)

    async def _reconcile_group(self, group: LackingGroup, requests: list[Json]) -> None:
        if len(group.pod_sets) > MOST_POD_SETS:
            log.warning("%s: no ProvisioningRequest for more than %d different pods", group.key, MOST_POD_SETS)
            return
        requests.sort(key=_attempt)
        newest = requests[-1] if requests else None
        for older in requests[:-1]:
            await self._delete(older)
        if newest is None:
            await self._create_request(group, 1)
        elif (
            newest["metadata"]["labels"].get(OWNER) != _hash(group)
            or newest["spec"]["provisioningClassName"] != self._class
        ):
            await self._delete(newest)  # its pods changed
            await self._create_request(group, 1)
        elif over := _end_of(newest):
            if self._clock.now() >= _transition_time(over) + _backoff(over, _attempt(newest)):
                log.info(
                    "%s: request %s is over (%s); making another", group.key, newest["metadata"]["name"], over["type"]
                )
                await self._delete(newest)
                await self._create_request(group, _attempt(newest) + 1)
        else:
            await self._annotate_pods(group, newest["metadata"]["name"])

    # ---- writing

    async def _create_request(self, group: LackingGroup, attempt: int) -> None:
        """Create the templates, then the request, then annotate the pods."""
        name = f"{group.name[:180].rstrip('.-')}-{_hash(group)}-{attempt}"
        labels = {OWNER: _hash(group)}
        sets = []
        for number, pods in enumerate(group.pod_sets):
            try:
                pod = msgspec.json.decode(await self._client.get(PODS, pods.example, group.namespace))
            except NotFound:
                return  # its pods are being deleted: checked again later
            template = f"{name}-{number}"
            body = {
                "apiVersion": "v1",
                "kind": "PodTemplate",
                "metadata": {"name": template, "namespace": group.namespace, "labels": labels},
                "template": template_of(pod),
            }
            with contextlib.suppress(AlreadyExists):
                await self._client.create(TEMPLATES, body, group.namespace)
            sets.append({"count": pods.count, "podTemplateRef": {"name": template}})
        annotations = {GROUP: group.key, ATTEMPT: str(attempt)}
        request = {
            "apiVersion": REQUESTS.api_version,
            "kind": REQUESTS.kind,
            "metadata": {"name": name, "namespace": group.namespace, "labels": labels, "annotations": annotations},
            "spec": {"provisioningClassName": self._class, "podSets": sets, "parameters": {}},
        }
        with contextlib.suppress(AlreadyExists):
            await self._client.create(REQUESTS, request, group.namespace)
        await self._annotate_pods(group, name)

    async def _annotate_pods(self, group: LackingGroup, name: str) -> None:
        patch = {"metadata": {"annotations": {CONSUMES: name, CLASS: self._class}}}
        named = self._consumed.setdefault(f"{group.namespace}/{name}", set())
        for pod in group.pods:
            if pod in named:
                continue
            named.add(pod)
            with contextlib.suppress(NotFound):
                await self._client.patch(PODS, pod, patch, group.namespace)

    async def _delete(self, request: Json) -> None:
        metadata = request["metadata"]
        self._consumed.pop(f"{metadata['namespace']}/{metadata['name']}", None)
        for pods in request["spec"]["podSets"]:
            with contextlib.suppress(NotFound):
                await self._client.delete(TEMPLATES, pods["podTemplateRef"]["name"], metadata["namespace"])
        with contextlib.suppress(NotFound):
            await self._client.delete(REQUESTS, metadata["name"], metadata["namespace"], uid=metadata["uid"])


def template_of(pod: Json) -> Json:
    """Return a pod template: the pod without fields of this pod or of the API server."""
    spec = {key: value for key, value in pod["spec"].items() if key not in _OF_ONE_POD}
    spec["volumes"] = [v for v in spec.get("volumes") or () if not v["name"].startswith(SERVICE_TOKEN_PREFIX)]
    for kind in ("containers", "initContainers"):
        if kind in spec:
            spec[kind] = [_without_token(container) for container in spec[kind]]
    metadata = pod["metadata"]
    annotations = {k: v for k, v in (metadata.get("annotations") or {}).items() if k not in (CONSUMES, CLASS)}
    return {"metadata": {"labels": metadata.get("labels") or {}, "annotations": annotations}, "spec": spec}


def _without_token(container: Json) -> Json:
    mounts = [m for m in container.get("volumeMounts") or () if not m["name"].startswith(SERVICE_TOKEN_PREFIX)]
    return {**container, "volumeMounts": mounts}


def _hash(group: LackingGroup) -> str:
    """Return a hash of the group and its numbers of pods."""
    return hash_of([group.key, group.uid, sorted(pods.count for pods in group.pod_sets)])


def _attempt(request: Json) -> int:
    text = (request["metadata"].get("annotations") or {}).get(ATTEMPT, "1")
    return int(text) if text.isdigit() and len(text) < 6 else 1


def _end_of(request: Json) -> Json | None:
    conditions = (request.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c["type"] in _ENDED and c["status"] == "True"), None)


def _transition_time(condition: Json) -> float:
    try:
        return parse_rfc3339(condition.get("lastTransitionTime") or "")
    except ValueError:
        return 0.0


def _backoff(condition: Json, attempt: int) -> float:
    """Return the delay in seconds: provided nodes that were lost can be requested again at once."""
    if condition["type"] != "Failed":
        return 0.0
    return min(FIRST_BACKOFF * 2.0 ** min(attempt - 1, 10), LONGEST_BACKOFF)
