"""The volume plugins: restrictions, limits, binding and zones."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from phalanx.model import objects as o
from phalanx.model.objects.pod import Volume
from phalanx.model.objects.storage import TopologySelectorTerm
from support.reference import quantity
from support.reference.cluster import Cluster
from support.reference.matching import node_selector_matches, selector_of
from support.reference.node_plugins import broken_line, round_half_up
from support.reference.plugin import Plugin, Rejection

Claim = o.PersistentVolumeClaim
NO_PROVISIONER = "kubernetes.io/no-provisioner"
CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"


def claim_name(pod: o.Pod, volume: Volume) -> str | None:
    if volume.persistent_volume_claim is not None:
        return volume.persistent_volume_claim.claim_name
    return f"{pod.metadata.name}-{volume.name}" if volume.ephemeral is not None else None


def class_of(thing: o.PersistentVolume | Claim) -> str:
    return thing.metadata.annotations.get(CLASS_ANNOTATION, thing.spec.storage_class_name or "")


def not_found(name: str) -> str:
    return f'persistentvolumeclaim "{name}" not found'


def owned_by(claim: Claim, pod: o.Pod) -> bool:
    return any(r.controller and r.uid == pod.metadata.uid for r in claim.metadata.owner_references)


def not_owned(claim: Claim, pod: o.Pod) -> str:
    ns = pod.metadata.namespace
    return f"PVC {ns}/{claim.metadata.name} was not created for pod {ns}/{pod.metadata.name} (pod is not owner)"


class VolumeRestrictions(Plugin):
    name = "VolumeRestrictions"

    def pre_filter(self, pod: o.Pod, cluster: Cluster) -> Rejection | None:
        for volume in pod.spec.volumes or []:
            source = volume.persistent_volume_claim
            if source is not None and cluster.claim(pod.metadata.namespace, source.claim_name) is None:
                return self.reject_for_good(not_found(source.claim_name))
        return None

    def filter(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> Rejection | None:
        for mine in pod.spec.volumes or []:
            for other in cluster.pods_on(node):
                if any(disks_conflict(mine, theirs) for theirs in other.spec.volumes or []):
                    return self.reject("node(s) had no available disk")
        if any(self.used_elsewhere(pod, v, cluster) for v in pod.spec.volumes or []):
            return self.reject(
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode"
                " already in-use by another pod"
            )
        return None

    def used_elsewhere(self, pod: o.Pod, volume: Volume, cluster: Cluster) -> bool:
        """Return True if a placed pod uses a ReadWriteOncePod claim of this pod."""
        source = volume.persistent_volume_claim
        if source is None:
            return False
        claim = cluster.claim(pod.metadata.namespace, source.claim_name)
        if claim is None or "ReadWriteOncePod" not in (claim.spec.access_modes or []):
            return False
        return any(
            other.metadata.namespace == pod.metadata.namespace
            and any(
                v.persistent_volume_claim is not None and v.persistent_volume_claim.claim_name == source.claim_name
                for v in other.spec.volumes or []
            )
            for other, _ in cluster.placed()
        )


def disks_conflict(a: Volume, b: Volume) -> bool:
    """Return True for the same disk twice on one node, unless both uses are read-only (EBS: never)."""
    if a.gce_persistent_disk and b.gce_persistent_disk:
        x, y = a.gce_persistent_disk, b.gce_persistent_disk
        if x.pd_name == y.pd_name and not (x.read_only and y.read_only):
            return True
    ebs, other_ebs = a.aws_elastic_block_store, b.aws_elastic_block_store
    if ebs and other_ebs and ebs.volume_id == other_ebs.volume_id:
        return True
    if a.iscsi and b.iscsi and a.iscsi.iqn == b.iscsi.iqn and not (a.iscsi.read_only and b.iscsi.read_only):
        return True
    if a.rbd and b.rbd:
        same = (a.rbd.pool, a.rbd.image) == (b.rbd.pool, b.rbd.image) and set(a.rbd.monitors) & set(b.rbd.monitors)
        if same and not (a.rbd.read_only and b.rbd.read_only):
            return True
    return False


class NodeVolumeLimits(Plugin):
    name = "NodeVolumeLimits"

    def filter(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> Rejection | None:
        for volume in pod.spec.volumes or []:
            name = claim_name(pod, volume)
            if name is None:
                continue
            claim = cluster.claim(pod.metadata.namespace, name)
            if claim is None:
                return self.reject_for_good(f"looking up PVC {pod.metadata.namespace}/{name}: {not_found(name)}")
            if volume.ephemeral is not None and not owned_by(claim, pod):
                return self.reject_for_good(not_owned(claim, pod))
        new = self.attachments(pod, cluster)
        csi_node = cluster.csi_node(node.metadata.name)
        installed = {d.name: d for d in csi_node.spec.drivers} if csi_node else {}
        for driver in sorted({driver for driver, _ in new}):
            known = cluster.csi_driver(driver)
            if known is not None and known.spec.prevent_pod_scheduling_if_missing and driver not in installed:
                return self.reject(f"{driver} CSI driver is not installed on the node")
        attached = {a for other in cluster.pods_on(node) for a in self.attachments(other, cluster)}
        for driver in {driver for driver, _ in new}:
            limit = installed[driver].allocatable if driver in installed else None
            if limit is None or limit.count is None:
                continue
            if len([a for a in attached | new if a[0] == driver]) > limit.count and any(
                a[0] == driver for a in new - attached
            ):
                return self.reject("node(s) exceed max volume count")
        return None

    def attachments(self, pod: o.Pod, cluster: Cluster) -> set[tuple[str, str]]:
        """Return (driver, volume) of every CSI volume the pod uses; claims that cannot be read do not count."""
        found = set()
        for volume in pod.spec.volumes or []:
            name = claim_name(pod, volume)
            claim = cluster.claim(pod.metadata.namespace, name) if name is not None else None
            if claim is None or (volume.ephemeral is not None and not owned_by(claim, pod)):
                continue
            bound = cluster.volume(claim.spec.volume_name) if claim.spec.volume_name else None
            if bound is not None:
                if bound.spec.csi is not None and bound.spec.csi.driver and bound.spec.csi.volume_handle:
                    found.add((bound.spec.csi.driver, bound.spec.csi.volume_handle))
                continue
            storage_class = cluster.storage_class(class_of(claim))
            if storage_class is not None and storage_class.provisioner:
                found.add((storage_class.provisioner, f"{claim.metadata.namespace}/{claim.metadata.name}"))
        return found


@dataclass
class Binding:
    """The volumes that binding the pod's claims on one node requires."""

    static: list[tuple[Claim, o.PersistentVolume]] = field(default_factory=list)
    provisioned: list[tuple[Claim, o.CSIStorageCapacity | None]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)


@dataclass
class VolumeBinding(Plugin):
    shape: list[tuple[int, int]] = field(default_factory=lambda: [(0, 10), (100, 0)])
    name = "VolumeBinding"
    weight = 1

    def pre_filter(self, pod: o.Pod, cluster: Cluster) -> Rejection | None:
        for volume in pod.spec.volumes or []:
            name = claim_name(pod, volume)
            if name is None:
                continue
            claim = cluster.claim(pod.metadata.namespace, name)
            if claim is None:
                if volume.ephemeral is not None:
                    text = f'waiting for ephemeral volume controller to create the persistentvolumeclaim "{name}"'
                    return self.reject_for_good(text)
                return self.reject_for_good(not_found(name))
            if claim.status.phase == "Lost":
                bound_to = claim.spec.volume_name
                text = f'persistentvolumeclaim "{name}" bound to non-existent persistentvolume "{bound_to}"'
                return self.reject_for_good(text)
            if claim.metadata.deletion_timestamp is not None:
                return self.reject_for_good(f'persistentvolumeclaim "{name}" is being deleted')
            if volume.ephemeral is not None and not owned_by(claim, pod):
                return self.reject_for_good(not_owned(claim, pod))
        if any(not fully_bound(c) and not waits_for_consumer(c, cluster) for c in self.claims(pod, cluster)):
            return self.reject_for_good("pod has unbound immediate PersistentVolumeClaims")
        return None

    def claims(self, pod: o.Pod, cluster: Cluster) -> list[Claim]:
        names = dict.fromkeys(claim_name(pod, v) for v in pod.spec.volumes or [])  # named twice is one claim
        found = [cluster.claim(pod.metadata.namespace, n) for n in names if n is not None]
        return [c for c in found if c is not None]

    def filter(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> Rejection | None:
        reasons = self.bind(pod, node, cluster).reasons
        return self.reject_for_good(*reasons) if reasons else None

    def bind(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> Binding:
        """Bind claims: bound ones must be reachable from the node; others get the smallest fitting or a new volume."""
        result = Binding()
        claims = self.claims(pod, cluster)
        for claim in claims:
            if fully_bound(claim):
                volume = cluster.volume(claim.spec.volume_name)
                if volume is None:
                    result.reasons.append("node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")
                    break
                if not reachable(volume, node):
                    result.reasons.append("node(s) didn't match PersistentVolume's node affinity")
                    break
        unbound = [c for c in claims if not fully_bound(c)]
        no_volume = "node(s) didn't find available persistent volumes to bind"
        selected = [c for c in unbound if SELECTED_NODE in c.metadata.annotations]
        if any(c.metadata.annotations[SELECTED_NODE] != node.metadata.name for c in selected):
            self._add_reason(result, no_volume)
            return result
        to_provision = list(selected)
        for claim in sorted((c for c in unbound if c not in selected), key=requested_storage):
            match = matching_volume(claim, node, cluster, [v for _, v in result.static])
            if match is None:
                to_provision.append(claim)
            else:
                result.static.append((claim, match))
        for claim in to_provision:
            reason, capacity = provisionable(claim, node, cluster)
            if reason is not None:
                self._add_reason(result, reason)
                return result
            result.provisioned.append((claim, capacity))
        return result

    @staticmethod
    def _add_reason(result: Binding, reason: str) -> None:
        """Add a reason; the one about bound volumes that do not exist always comes last."""
        missing = [r for r in result.reasons if "non-existent" in r]
        rest = [r for r in result.reasons if "non-existent" not in r]
        result.reasons = [*rest, reason, *missing]

    def score(self, pod: o.Pod, node: o.Node, feasible: list[o.Node], cluster: Cluster) -> int:
        binding = self.bind(pod, node, cluster)
        use: dict[str, tuple[int, int]] = {}  # class -> (requested, capacity)
        for claim, volume in binding.static:
            asked, capacity = use.get(volume.spec.storage_class_name, (0, 0))
            size = quantity.whole("storage", quantity.parse(volume.spec.capacity.get("storage", 0)))
            use[volume.spec.storage_class_name] = (asked + requested_bytes(claim), capacity + size)
        if not binding.static:
            for claim, pool in binding.provisioned:
                if pool is None:
                    continue
                asked, _ = use.get(class_of(claim), (0, 0))
                size = quantity.whole("storage", quantity.parse(pool.capacity or 0))
                use[class_of(claim)] = (asked + requested_bytes(claim), size)
        if not use:
            return 0
        points = 0
        for asked, capacity in use.values():
            utilization = 100 if capacity == 0 or asked > capacity else asked * 100 // capacity
            points += broken_line([(u, s * 10) for u, s in self.shape], utilization)
        return round_half_up(Fraction(points, len(use)))


def fully_bound(claim: Claim) -> bool:
    return bool(claim.spec.volume_name) and BIND_COMPLETED in claim.metadata.annotations


def waits_for_consumer(claim: Claim, cluster: Cluster) -> bool:
    """Return True for an unbound claim of a WaitForFirstConsumer class; one that names a volume is not ours to bind."""
    storage_class = cluster.storage_class(class_of(claim))
    if storage_class is None or claim.spec.volume_name:
        return False
    return storage_class.volume_binding_mode == "WaitForFirstConsumer"


def reachable(volume: o.PersistentVolume, node: o.Node) -> bool:
    affinity = volume.spec.node_affinity
    return affinity is None or affinity.required is None or node_selector_matches(affinity.required, node)


def requested_storage(claim: Claim) -> Fraction:
    return quantity.parse((claim.spec.resources.requests or {}).get("storage", 0))


def requested_bytes(claim: Claim) -> int:
    return quantity.whole("storage", requested_storage(claim))


def is_for(volume: o.PersistentVolume, claim: Claim) -> bool:
    """Return True if the volume is reserved for exactly this claim."""
    ref = volume.spec.claim_ref
    if ref is None or (ref.namespace, ref.name) != (claim.metadata.namespace, claim.metadata.name):
        return False
    return not ref.uid or ref.uid == claim.metadata.uid


def matching_volume(
    claim: Claim, node: o.Node, cluster: Cluster, taken: list[o.PersistentVolume]
) -> o.PersistentVolume | None:
    """Return the volume reserved for the claim, else the smallest available one that suits (equal sizes: by name)."""
    best: o.PersistentVolume | None = None
    for volume in sorted(cluster.volumes, key=lambda v: v.metadata.name):
        if volume in taken or class_of(volume) != class_of(claim) or volume.metadata.deletion_timestamp is not None:
            continue
        if volume.spec.claim_ref is not None and not is_for(volume, claim):
            continue
        if storage_of(volume) < requested_storage(claim):
            continue
        if (volume.spec.volume_mode or "Filesystem") != (claim.spec.volume_mode or "Filesystem"):
            continue
        if is_for(volume, claim):
            return volume if reachable(volume, node) else None
        if volume.status.phase != "Available" or not reachable(volume, node):
            continue
        if claim.spec.selector is not None and not selector_of(claim.spec.selector).matches(volume.metadata.labels):
            continue
        if not set(claim.spec.access_modes or []) <= set(volume.spec.access_modes or []):
            continue
        if best is None or storage_of(volume) < storage_of(best):
            best = volume
    return best


def storage_of(volume: o.PersistentVolume) -> Fraction:
    return quantity.parse(volume.spec.capacity.get("storage", 0))


def provisionable(claim: Claim, node: o.Node, cluster: Cluster) -> tuple[str | None, o.CSIStorageCapacity | None]:
    """Return (why no volume can be provisioned for this node, the pool it would use when pools are tracked)."""
    cannot = "node(s) didn't find available persistent volumes to bind"
    storage_class = cluster.storage_class(class_of(claim))
    if storage_class is None or not storage_class.provisioner or storage_class.provisioner == NO_PROVISIONER:
        return cannot, None
    topologies = storage_class.allowed_topologies or []
    if topologies and not any(topology_matches(t, node) for t in topologies):
        return cannot, None
    driver = cluster.csi_driver(storage_class.provisioner)
    if driver is None or not driver.spec.storage_capacity or "storage" not in (claim.spec.resources.requests or {}):
        return None, None
    for pool in sorted(cluster.capacities, key=lambda c: (c.metadata.namespace, c.metadata.name)):
        limit = pool.maximum_volume_size if pool.maximum_volume_size is not None else pool.capacity
        if (
            pool.storage_class_name == storage_class.metadata.name
            and limit is not None
            and quantity.whole("storage", quantity.parse(limit)) >= requested_bytes(claim)
            and selector_of(pool.node_topology).matches(node.metadata.labels)
        ):
            return None, pool
    return "node(s) did not have enough free storage", None


def topology_matches(term: TopologySelectorTerm, node: o.Node) -> bool:
    """Match a topology term; one without expressions matches nothing."""
    expressions = term.match_label_expressions or []
    return bool(expressions) and all(node.metadata.labels.get(e.key) in e.values for e in expressions)


class VolumeZone(Plugin):
    name = "VolumeZone"
    keys = (
        "failure-domain.beta.kubernetes.io/zone",
        "failure-domain.beta.kubernetes.io/region",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
    )

    def pre_filter(self, pod: o.Pod, cluster: Cluster) -> Rejection | None:
        for volume in pod.spec.volumes or []:
            source = volume.persistent_volume_claim
            if source is None:
                continue
            if not source.claim_name:
                return self.reject_for_good("PersistentVolumeClaim had no name")
            claim = cluster.claim(pod.metadata.namespace, source.claim_name)
            if claim is None:
                return self.reject_for_good(not_found(source.claim_name))
            if claim.spec.volume_name:
                if cluster.volume(claim.spec.volume_name) is None:
                    return self.reject_for_good(f'persistentvolume "{claim.spec.volume_name}" not found')
                continue
            name = class_of(claim)
            if not name:
                return self.reject_for_good("PersistentVolumeClaim had no pv name and storageClass name")
            storage_class = cluster.storage_class(name)
            if storage_class is None:
                return self.reject_for_good(f'storageclass.storage.k8s.io "{name}" not found')
            if storage_class.volume_binding_mode is None:
                return self.reject_for_good(f'VolumeBindingMode not set for StorageClass "{name}"')
            if storage_class.volume_binding_mode != "WaitForFirstConsumer":
                return self.reject_for_good("PersistentVolume had no name")
        return None

    def filter(self, pod: o.Pod, node: o.Node, cluster: Cluster) -> Rejection | None:
        labels = node.metadata.labels
        if not any(key in labels for key in self.keys):
            return None  # a cluster of one zone, whose nodes have no zone labels
        for volume in pod.spec.volumes or []:
            source = volume.persistent_volume_claim
            claim = cluster.claim(pod.metadata.namespace, source.claim_name) if source is not None else None
            bound = cluster.volume(claim.spec.volume_name) if claim is not None and claim.spec.volume_name else None
            if bound is None:
                continue
            for key in self.keys:
                zones = bound.metadata.labels.get(key, "").split("__")
                if "" in zones:
                    continue  # no label, or one that does not make sense
                stable = key.replace("failure-domain.beta.kubernetes.io", "topology.kubernetes.io")
                if labels.get(key, labels.get(stable)) not in zones:
                    return self.reject_for_good("node(s) had no available volume zone")
        return None
