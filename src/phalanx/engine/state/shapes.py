"""Intern shapes: pods that no filter or score can distinguish share one shape.

A pod label is part of a shape only as far as some selector known to the engine can see it (`LabelInterest`), so that
the index label of an indexed Job or StatefulSet does not give every pod its own shape. Priority is not part of a shape.
Third-party plugins add to the key with `sign(pod)`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from phalanx.engine.state.claims import ClaimUse
from phalanx.engine.state.label_interest import OTHER, LabelInterest, Mentions, of_pod
from phalanx.engine.state.requests import PodRequest, given, pod_request
from phalanx.model.objects import Pod
from phalanx.model.objects.meta import ObjectMeta
from phalanx.model.objects.pod import NodeAffinity, PodAffinity, Toleration, TopologySpreadConstraint, Volume

MOST_QUICK = 4_096  # maximum number of specs remembered by their bytes
FEW_SHAPES = 256  # up to this number, unused shapes are kept too

HostPort = tuple[str, str, int]  # (host ip, protocol, port)


class Shape:
    """Interned; compare by identity. Read-only for plugins."""

    __slots__ = (
        "affinity",
        "amounts",
        "anti_affinity",
        "claims",
        "host_ports",
        "id",
        "images",
        "key",
        "labels",
        "namespace",
        "node_affinity",
        "node_selector",
        "nonzero",
        "owner",
        "pod",
        "profile",
        "refs",
        "requests",
        "rids",
        "signatures",
        "spread",
        "tolerations",
        "volumes",
    )

    id: int
    key: Hashable
    profile: str  # scheduler name
    namespace: str
    labels: dict[str, str]  # as selectors see them: a value that no selector mentions is interest.OTHER
    requests: tuple[tuple[int, float], ...]  # (resource id, amount > 0), by id; always has (PODS, 1)
    rids: npt.NDArray[np.int64]  # the same as arrays
    amounts: npt.NDArray[np.float64]
    nonzero: tuple[float, float]  # milli cpu, memory bytes, with defaults for containers without requests
    tolerations: tuple[Toleration, ...]
    node_selector: dict[str, str]
    node_affinity: NodeAffinity | None
    affinity: PodAffinity | None
    anti_affinity: PodAffinity | None
    spread: tuple[TopologySpreadConstraint, ...]
    host_ports: tuple[HostPort, ...]
    images: tuple[str, ...]  # one per container, init container and image volume, normalised, sorted
    volumes: tuple[Volume, ...]  # only those a volume plugin reads; generic ephemeral ones as claims <pod>-<volume>
    claims: tuple[ClaimUse, ...]  # resource claims, also those of extended resources
    owner: tuple[str, str]  # (kind, name) of the controller, for default topology spreading
    signatures: dict[str, Hashable]  # plugin name -> what its sign(pod) returned
    pod: Pod  # the first pod of this shape, as an example; never with a node name
    refs: int  # records that use it

    def __repr__(self) -> str:
        return f"<shape {self.id} of {self.namespace}/{self.pod.metadata.name}>"


Signer = Callable[[Pod], Hashable]

_encode = msgspec.json.Encoder(order="deterministic").encode
_OWNERS = frozenset({("apps/v1", "ReplicaSet"), ("apps/v1", "StatefulSet"), ("v1", "ReplicationController")})


class ResourceColumns(Protocol):
    @property
    def resources(self) -> Mapping[str, int]: ...

    def resource(self, name: str) -> int: ...


class ShapeTable:
    """Intern shapes in two steps: by the bytes of the spec, which is fast, and by a canonical key, which is exact."""

    def __init__(self, columns: ResourceColumns, interest: LabelInterest) -> None:
        self._columns = columns
        self.interest = interest
        self.signers: list[tuple[str, Signer]] = []  # of third-party plugins
        self._quick: dict[bytes, Shape] = {}
        self._by_key: dict[Hashable, Shape] = {}
        self._last_id = 0
        self.on_evict: list[Callable[[Shape], None]] = []
        self.uses_of: Callable[[Pod], tuple[ClaimUse, ...]] = _no_uses
        self.extended = False  # some extended resources are offered by device classes

    def __len__(self) -> int:
        return len(self._by_key)

    def every(self) -> list[Shape]:
        return list(self._by_key.values())

    def of(self, pod: Pod) -> Shape:
        """Return the shape of a pod; create it if it is new. Does not count a reference."""
        quick = None
        if not self.signers:
            labels = pod.metadata.labels
            seen = self.interest.project(labels)
            quick = self._quick_key(pod, seen)
            shape = self._quick.get(quick)
            if shape is not None:
                if OTHER in seen.values():
                    self.interest.hide(labels)
                return shape
        shape = self._canonical(pod)
        if quick is not None:
            if len(self._quick) > MOST_QUICK:
                self._quick.clear()
            self._quick[self._quick_key(pod, shape.labels)] = shape  # computed again: the interest may have grown
        return shape

    def same_claims(self, pod: Pod, shape: Shape) -> bool:
        """Return True if the claims of a pod are still those of its shape."""
        return [use.identity for use in self.uses_of(pod)] == [use.identity for use in shape.claims]

    def start_epoch(self) -> None:
        """Let every shape be computed again before its next use: what requests mean has changed."""
        self._quick.clear()
        self.interest.epoch += 1

    def mentions(self) -> Iterator[Mentions]:
        """List what the rules of pods with a shape mention: a source of the label interest."""
        for shape in self._by_key.values():
            if shape.spread or shape.affinity is not None or shape.anti_affinity is not None:
                yield of_pod(shape.pod)

    def requested(self) -> set[int]:
        """Return the ids of the resources that any shape requests."""
        return {rid for shape in self._by_key.values() for rid, _ in shape.requests}

    def keep(self, shape: Shape) -> None:
        shape.refs += 1

    def drop(self, shape: Shape) -> None:
        shape.refs -= 1
        if shape.refs <= 0 and len(self._by_key) > FEW_SHAPES:
            self.evict_unused()

    def evict_unused(self) -> None:
        """Remove shapes that no record uses, in one sweep when at least half are unused, so that each costs O(1)."""
        dead = [shape for shape in self._by_key.values() if shape.refs <= 0]
        if len(dead) * 2 < len(self._by_key):
            return
        self._quick.clear()
        for shape in dead:
            del self._by_key[shape.key]
            for callback in self.on_evict:
                callback(shape)

    def _quick_key(self, pod: Pod, seen: Mapping[str, str]) -> bytes:
        spec, meta = pod.spec, pod.metadata
        parts: list[Any] = [
            spec.scheduler_name,
            meta.namespace,
            seen,
            spec.containers,
            spec.init_containers,
            spec.tolerations,
            spec.node_selector,
            spec.affinity,
            spec.topology_spread_constraints,
            # Other volumes do not matter here, and every pod has one with its own name (kube-api-access-xxxxx).
            [volume for volume in spec.volumes if _matters(volume)] if spec.volumes else None,
            spec.overhead,
            spec.resources,
            _owner(meta),
        ]
        if spec.resource_claims or self.extended:
            parts.append([use.identity for use in self.uses_of(pod)])
        if (held := given(pod)) is not None:
            parts.append(held)
        if spec.volumes and any(volume.ephemeral is not None for volume in spec.volumes):
            parts.append(meta.name)  # the claim of a generic ephemeral volume contains the pod's name
        return _encode(parts)

    def _canonical(self, pod: Pod) -> Shape:
        shape = Shape()
        spec, meta = pod.spec, pod.metadata
        # Every pod gets a shape before it is placed or evaluated, so no selector of a pod is learned too late.
        self.interest.learn(of_pod(pod), repeated=True)
        request = pod_request(pod, given(pod))
        shape.profile = spec.scheduler_name
        shape.namespace = meta.namespace
        shape.labels = self.interest.seen(meta.labels)
        shape.claims = self.uses_of(pod) if spec.resource_claims or self.extended else ()
        self._set_requests(shape, request)
        shape.tolerations = tuple(spec.tolerations or ())
        shape.node_selector = dict(spec.node_selector or {})
        affinity = spec.affinity
        shape.node_affinity = affinity.node_affinity if affinity else None
        shape.affinity = affinity.pod_affinity if affinity else None
        shape.anti_affinity = affinity.pod_anti_affinity if affinity else None
        shape.spread = tuple(spec.topology_spread_constraints or ())
        shape.host_ports = _host_ports(pod)
        shape.images = _images(pod)
        shape.volumes = _volumes(pod)
        shape.owner = _owner(meta)
        shape.signatures = {name: _signature(sign, pod) for name, sign in self.signers}
        # The node of the first pod of a shape does not apply to the other pods.
        shape.pod = pod
        if spec.node_name:
            shape.pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(spec, node_name=""))
        shape.refs = 0
        shape.key = (
            shape.profile,
            shape.namespace,
            tuple(sorted(shape.labels.items())),
            shape.requests,
            shape.nonzero,
            tuple(sorted({(t.key, t.operator or "Equal", t.value, t.effect) for t in shape.tolerations})),
            tuple(sorted(shape.node_selector.items())),
            _encode(affinity) if affinity is not None else b"",
            _encode(shape.spread) if shape.spread else b"",
            shape.host_ports,
            shape.images,
            _encode(shape.volumes) if shape.volumes else b"",
            tuple(use.identity for use in shape.claims),
            shape.owner,
            tuple(shape.signatures.items()),
            # The rest share the column of resources that no node offers, and will fit on different nodes.
            tuple(
                n for n, amount in sorted(request.amounts.items()) if amount > 0 and n not in self._columns.resources
            ),
        )
        known = self._by_key.get(shape.key)
        if known is not None:
            return known
        self._last_id += 1
        shape.id = self._last_id
        self._by_key[shape.key] = shape
        return shape

    def _set_requests(self, shape: Shape, request: PodRequest) -> None:
        amounts: dict[int, float] = {}
        for name, amount in request.amounts.items():
            if amount > 0:
                rid = self._columns.resource(name)  # resources that no node offers may share one
                amounts[rid] = max(amount, amounts.get(rid, 0.0))
        pairs = sorted(amounts.items())
        if shape.claims:  # extended resources that device classes offer are handled as claims
            apart = {rid for use in shape.claims for rid, _, _ in use.resources}
            pairs = [pair for pair in pairs if pair[0] not in apart]
        shape.requests = tuple(pairs)
        shape.rids = np.array([rid for rid, _ in pairs], dtype=np.int64)
        shape.amounts = np.array([amount for _, amount in pairs], dtype=np.float64)
        shape.nonzero = request.nonzero


def _owner(meta: ObjectMeta) -> tuple[str, str]:
    """Return kind and name of the owner whose pods are spread by default; owners of other kinds do not matter."""
    for ref in meta.owner_references or ():
        if ref.controller and (ref.api_version, ref.kind) in _OWNERS:
            return ref.kind, ref.name
    return "", ""


def _no_uses(pod: Pod) -> tuple[ClaimUse, ...]:
    return ()


def _signature(sign: Signer, pod: Pod) -> Hashable:
    """Return the signature of a pod. If the plugin fails to sign it, the pod gets a unique one."""
    try:
        signature = sign(pod)
        hash(signature)
    except BaseException:
        return ("unsigned", pod.metadata.uid)
    return signature


def _host_ports(pod: Pod) -> tuple[HostPort, ...]:
    ports: set[HostPort] = set()
    containers = [*pod.spec.containers, *(c for c in pod.spec.init_containers or () if c.restart_policy == "Always")]
    for container in containers:
        for port in container.ports or ():
            if port.host_port > 0:
                ports.add((port.host_ip or "0.0.0.0", port.protocol or "TCP", port.host_port))
    return tuple(sorted(ports))


def normalised_image(name: str) -> str:
    """Append ":latest" to an image without a tag. A colon before the last slash belongs to a registry port."""
    if name.rfind(":") <= name.rfind("/"):
        return name + ":latest"
    return name


def _images(pod: Pod) -> tuple[str, ...]:
    names = [c.image for c in (*(pod.spec.init_containers or ()), *pod.spec.containers)]
    names += [v.image.reference for v in pod.spec.volumes or () if v.image is not None]
    return tuple(sorted(normalised_image(name) for name in names))


def _volumes(pod: Pod) -> tuple[Volume, ...]:
    from phalanx.model.objects.pod import PersistentVolumeClaimVolumeSource

    found: list[Volume] = []
    for volume in pod.spec.volumes or ():
        if volume.ephemeral is not None:
            claim = PersistentVolumeClaimVolumeSource(claim_name=f"{pod.metadata.name}-{volume.name}")
            found.append(Volume(name=volume.name, persistent_volume_claim=claim, ephemeral=volume.ephemeral))
        elif volume.image is None and _matters(volume):
            found.append(volume)
    return tuple(found)


def _matters(volume: Volume) -> bool:
    """Return True if a plugin reads the volume or its image."""
    return bool(
        volume.persistent_volume_claim
        or volume.ephemeral is not None
        or volume.gce_persistent_disk
        or volume.aws_elastic_block_store
        or volume.iscsi
        or volume.rbd
        or volume.csi
        or volume.image is not None
    )
