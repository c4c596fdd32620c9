"""Claims of pods: their part of the pod's shape, and an index of pods by claim."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from phalanx.engine.devices.state import DeviceState
from phalanx.engine.state.claims import EXTENDED, MISSING, NAMED, OWN, ClaimKey, ClaimUse, claim_names, claims_of
from phalanx.model.gates import Gates
from phalanx.model.objects import DeviceClass, Pod, PodGroup, ResourceClaim
from phalanx.model.objects.devices import (
    IMPLICIT_RESOURCE_PREFIX,
    DeviceClaim,
    DeviceRequest,
    ExactDeviceRequest,
    ResourceClaimSpec,
)
from phalanx.model.objects.pod import Container, PodResourceClaim
from phalanx.model.quantity import units

_encode = msgspec.json.Encoder(order="deterministic").encode


class ResourceMapping(msgspec.Struct, frozen=True):
    """The request of a pod's extended claim that serves a resource of a container."""

    container: str
    resource: str
    request: str


class ClaimUses:
    def __init__(self, state: DeviceState, resource_id: Callable[[str], int], gates: Gates) -> None:
        self._state = state
        self._objects = state.objects
        self._resource_id = resource_id
        self._group_claims = gates("DRAWorkloadResourceClaims")
        self._named_by: dict[ClaimKey, dict[str, None]] = {}  # claim -> keys of the pods that name it
        self._names: dict[str, tuple[ClaimKey, ...]] = {}  # pod key -> claims
        self.classes: dict[str, str] = {}  # extended resource -> device class

    # ---- pods by claim

    def pod_seen(self, pod: Pod) -> None:
        key = f"{pod.metadata.namespace}/{pod.metadata.name}"
        names = claims_of(pod) if pod.status.phase not in ("Succeeded", "Failed") else ()
        if names != self._names.get(key, ()):
            self.lost(pod.metadata.namespace, pod.metadata.name)
            if names:
                self._names[key] = names
                for name in names:
                    self._named_by.setdefault(name, {})[key] = None

    def lost(self, namespace: str, name: str) -> None:
        key = f"{namespace}/{name}"
        for claim in self._names.pop(key, ()):
            users = self._named_by.get(claim, {})
            users.pop(key, None)
            if not users:
                self._named_by.pop(claim, None)

    # ---- classes that offer extended resources

    def class_changed(self, old: DeviceClass | None, new: DeviceClass | None) -> set[str]:
        """Return the extended resources whose device class changed."""
        before = dict(self.classes)
        if old is not None:
            name = old.metadata.name
            for resource in (old.spec.extended_resource_name, IMPLICIT_RESOURCE_PREFIX + name):
                if resource and self.classes.get(resource) == name:
                    del self.classes[resource]
        for each in sorted(self._objects.all(DeviceClass), key=_age):
            if each.spec.extended_resource_name:
                self.classes[each.spec.extended_resource_name] = each.metadata.name
        if new is not None:
            self.classes[IMPLICIT_RESOURCE_PREFIX + new.metadata.name] = new.metadata.name
        return {name for name, _ in before.items() ^ self.classes.items()}

    # ---- uses

    def of(self, pod: Pod) -> tuple[ClaimUse, ...]:
        found = [self._use(pod, entry, name) for entry, name in claim_names(pod)]
        if self.classes and (extended := self._extended(pod)) is not None:
            found.append(extended)
        return tuple(found)

    def _use(self, pod: Pod, entry: str, name: str | None) -> ClaimUse:
        """Return the state of one claim of a pod, with the problem that keeps the pod waiting."""
        namespace = pod.metadata.namespace
        if name is None:
            text = f'waiting for the resourceclaim of "{entry}" to be created'
            return ClaimUse(MISSING, (entry, ""), problem=text)
        key = (namespace, name)
        claim = self._state.claim(key)
        if claim is None:
            return ClaimUse(MISSING, key, claim=key, problem=f'resourceclaim "{name}" not found')
        if claim.metadata.deletion_timestamp is not None and not pod.spec.node_name:
            return ClaimUse(MISSING, key, claim=key, problem=f'resourceclaim "{name}" is being deleted')
        generated = _by_template(pod, entry)
        if generated and not self._made_for(claim, pod):
            text = f"ResourceClaim {namespace}/{name} was not created for pod {namespace}/{pod.metadata.name}"
            return ClaimUse(MISSING, key, claim=key, problem=f"{text} (pod is not owner)")
        group = self.group_of(pod, entry)
        others = len(self._named_by.get(key, ())) > 1
        busy = (claim.status.allocation is not None or key in self._state.assumed) and not pod.spec.node_name
        if others or busy or group or (claim.status.reserved_for and not pod.spec.node_name):
            return ClaimUse(NAMED, (key, claim.metadata.uid), claim=key, group=group)
        return ClaimUse(OWN, self._state.specs.key(claim.spec), spec=claim.spec, claim=key)

    def _made_for(self, claim: ResourceClaim, pod: Pod) -> bool:
        owners = [ref for ref in claim.metadata.owner_references if ref.controller]
        if any(ref.kind == "Pod" and ref.uid == pod.metadata.uid for ref in owners):
            return True
        group = pod.spec.scheduling_group
        return self._group_claims and any(
            ref.kind == "PodGroup" and group is not None and ref.name == group.pod_group_name for ref in owners
        )

    def group_of(self, pod: Pod, entry: str) -> str:
        """Return the PodGroup that holds a claim for its members; "" if none. The entries of pod and group must be
        equal."""
        group = pod.spec.scheduling_group
        if not self._group_claims or group is None or not group.pod_group_name:
            return ""
        found = self._objects.get(PodGroup, pod.metadata.namespace, group.pod_group_name)
        mine = next((each for each in pod.spec.resource_claims or () if each.name == entry), None)
        if found is None or mine is None:
            return ""
        for theirs in found.spec.resource_claims or ():
            same = (theirs.name, theirs.resource_claim_name, theirs.resource_claim_template_name)
            if same == (mine.name, mine.resource_claim_name, mine.resource_claim_template_name):
                return group.pod_group_name
        return ""

    # ---- extended resources

    def _extended(self, pod: Pod) -> ClaimUse | None:
        containers = (*(pod.spec.init_containers or ()), *pod.spec.containers)
        if not any(name in self.classes for each in containers for name in each.resources.requests or ()):
            return None
        requests, mappings, resources = self.extended_requests(pod)
        if not requests:
            return None
        spec = ResourceClaimSpec(devices=DeviceClaim(requests=requests))
        names = {name: {each.request for each in mappings if each.resource == name} for name in resources}
        found = tuple(
            (self._resource_id(name), float(amount), tuple(sorted(names[name])))
            for name, amount in sorted(resources.items())
        )
        state, uid = self._state, pod.metadata.uid
        # The claim that an earlier scheduler process made for a pod which is not bound.
        made = ("", "") if pod.spec.node_name or state.is_placed(uid) else state.made_for(uid)
        return ClaimUse(EXTENDED, (_encode(spec), found, made), spec=spec, claim=made, resources=found)

    def extended_requests(self, pod: Pod) -> tuple[list[DeviceRequest], list[ResourceMapping], dict[str, int]]:
        """Return requests, mappings and amounts of a pod's extended resources that device classes offer (KEP-5004).

        Init containers that end share the devices of later containers and get additional ones only if needed.
        """
        init = pod.spec.init_containers or []
        containers = [*init, *pod.spec.containers]
        names = sorted({name for each in containers for name in _asked(each) if name in self.classes})
        requests: list[DeviceRequest] = []
        mappings: list[ResourceMapping] = []
        amounts: dict[str, int] = {}
        for resource in names:
            lasting: dict[int, DeviceRequest] = {}
            largest: DeviceRequest | None = None
            for number, each in enumerate(containers):
                if number < len(init) and each.restart_policy != "Always":
                    continue
                if (request := self._container_request(number, each, resource, 0)) is not None:
                    lasting[number] = request
                    mappings.append(ResourceMapping(each.name, resource, request.name))
            ending = [(number, each) for number, each in enumerate(init) if each.restart_policy != "Always"]
            extras = [self._init_request(number, each, resource, lasting, mappings) for number, each in ending]
            for extra in extras:
                if extra is not None and (largest is None or _count(extra) > _count(largest)):
                    largest = extra
            if largest is not None:
                for (_, each), extra in zip(ending, extras, strict=True):
                    if extra is not None:
                        mappings.append(ResourceMapping(each.name, resource, largest.name))
                requests.append(largest)
            requests += lasting.values()
            amounts[resource] = sum(map(_count, lasting.values())) + (_count(largest) if largest else 0)
        return sorted(requests, key=lambda request: request.name), mappings, amounts

    def _init_request(
        self,
        number: int,
        container: Container,
        resource: str,
        lasting: dict[int, DeviceRequest],
        mappings: list[ResourceMapping],
    ) -> DeviceRequest | None:
        """Return what an ending init container needs beyond the devices of later containers."""
        wanted, have = _asked(container).get(resource, 0), 0
        for at, request in lasting.items():
            if at >= number and have < wanted:
                have += _count(request)
                mappings.append(ResourceMapping(container.name, resource, request.name))
        return self._container_request(number, container, resource, have)

    def _container_request(self, number: int, container: Container, resource: str, have: int) -> DeviceRequest | None:
        asked = _asked(container)
        count = asked.get(resource, 0) - have
        if count <= 0:
            return None
        place = sorted(container.resources.requests or container.resources.limits or {}).index(resource)
        exactly = ExactDeviceRequest(
            device_class_name=self.classes[resource], allocation_mode="ExactCount", count=count
        )
        return DeviceRequest(name=f"container-{number}-request-{place}", exactly=exactly)


def _by_template(pod: Pod, entry: str) -> PodResourceClaim | None:
    return next(
        (
            each
            for each in pod.spec.resource_claims or ()
            if each.name == entry and each.resource_claim_template_name is not None
        ),
        None,
    )


def _asked(container: Container) -> dict[str, int]:
    """Return whole amounts of resources; limits are used if there are no requests."""
    amounts = container.resources.requests or container.resources.limits or {}
    return {name: units(text) for name, text in amounts.items() if "/" in name}


def _count(request: DeviceRequest) -> int:
    return request.exactly.count if request.exactly is not None else 0


def _age(each: DeviceClass) -> tuple[str, str]:
    """Return the sort key of classes of one resource: the youngest first, then by name."""
    return (each.metadata.creation_timestamp or "", "".join(chr(0x10FFFF - ord(c)) for c in each.metadata.name))
