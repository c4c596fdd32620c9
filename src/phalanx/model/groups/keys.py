"""Names of groups and pods inside a forest, and how a pod names its group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from phalanx.model.objects.pod import Pod

POD_GROUP = "PodGroup"
COMPOSITE = "CompositePodGroup"
WORKLOAD = "Workload"  # an implicit group of KEP-4671 v1alpha1: named <workload>/<podGroup>/<replica key>

GROUP_LABEL = "scheduling.phalanx.dev/pod-group"
# Written with the Binding of every pod that is bound as part of a group: the uid of that group's object.
BOUND_IN_GROUP = "scheduling.phalanx.dev/bound-in-group"
# Written by our controllers on groups and Workloads: the objects above their owner (a TrainJob over a JobSet).
PART_OF = "scheduling.phalanx.dev/part-of"
# On workloads, and on Workloads of KEP-4671, which have no field for it: all or single.
DISRUPTION = "scheduling.phalanx.dev/disruption"
PREFERRED_TOPOLOGY = "scheduling.phalanx.dev/preferred-topology"
# On groups: the devices of all members have one value of this attribute (a qualified name) in common.
MATCH_DEVICE_ATTRIBUTE = "scheduling.phalanx.dev/match-device-attribute"
DEVICE_KEY = "device:"  # topology keys that stand for an attribute of devices; no label of a node begins like this
# Annotations of Kueue on pods; they count for groups without a topology of their own.
KUEUE_REQUIRED_TOPOLOGY = "kueue.x-k8s.io/podset-required-topology"
KUEUE_PREFERRED_TOPOLOGY = "kueue.x-k8s.io/podset-preferred-topology"
# Written by the controller that creates the pods of a run: the run of a pod (a uid), and, once it has succeeded and
# is not replaced, the same uid again. Only then does a completed pod still count for its gang.
RUN = "scheduling.phalanx.dev/run"
COMPLETED_IN = "scheduling.phalanx.dev/completed-in-run"
# Written by the API server on a pod that was created while its PodGroup was being deleted: the uid of that group. The
# pod is not a member of it and does not block its deletion; it waits for the next group of that name.
AFTER_GROUP = "scheduling.phalanx.dev/after-group"
# Written by our controllers on the PodGroup of a replica that replaces one of an older revision: its name.
REPLACES = "scheduling.phalanx.dev/replaces"
# Only inside the scheduler, on the translation of an unusable PodGroup of another scheduler: what is wrong with it.
# Annotations of objects do not begin with a slash.
UNUSABLE = "/unusable"
# Likewise, on every translation: that PodGroup as kubectl names it, such as podgroups.scheduling.volcano.sh/train.
TRANSLATED_FROM = "/translated-from"
# A scheduling gate that the linking webhook adds to pods of a workload that grew, until its group has that count.
SIZE_GATE = "scheduling.phalanx.dev/group-size"


HOSTNAME = "kubernetes.io/hostname"  # the node label of its own name
ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
# Node labels that name nested domains, the outermost first.
TOPOLOGY_KEYS = (
    REGION,
    ZONE,
    "topology.phalanx.dev/block",
    "topology.phalanx.dev/rack",
)


MOST_ATTRIBUTE = 96  # characters of a qualified attribute name: domain (63), slash, identifier (32)


def device_attribute(annotations: Mapping[str, str]) -> str:
    """Return the attribute of devices that a group asks to have in common; "": none, or nothing that can be one."""
    text = annotations.get(MATCH_DEVICE_ATTRIBUTE, "")
    domain, _, name = text.partition("/")
    return text if len(text) <= MOST_ATTRIBUTE and domain and name and text.isprintable() else ""


class GroupKey(NamedTuple):
    """Kind is part of the name: a PodGroup and a CompositePodGroup may be called the same."""

    kind: str
    namespace: str
    name: str

    def __str__(self) -> str:
        if self.kind != WORKLOAD:
            return f"{self.kind} {self.name}"
        workload, group, replica = self.name.split("/", 2)
        return f"pod group {group}{f' (replica {replica})' if replica else ''} of Workload {workload}"


class PodKey(NamedTuple):
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def pod_key(pod: Pod) -> PodKey:
    return PodKey(pod.metadata.namespace, pod.metadata.name)


def group_of(pod: Pod) -> GroupKey | None:
    """Return the leaf group a pod names: by the 1.36+ field, else KEP-4671's reference, else our label."""
    namespace = pod.metadata.namespace
    link = pod.spec.scheduling_group
    if link is not None and link.pod_group_name:
        return GroupKey(POD_GROUP, namespace, link.pod_group_name)
    ref = pod.spec.workload_ref
    if ref is not None and ref.name:
        return implicit_key(namespace, ref.name, ref.pod_group, ref.pod_group_replica_key)
    name = pod.metadata.labels.get(GROUP_LABEL)
    return GroupKey(POD_GROUP, namespace, name) if name else None


def successor(key: GroupKey) -> GroupKey:
    """Return a key for the group that will replace one that is being deleted under the same name.

    No object can have the name in this key.
    """
    return key._replace(name=f"{key.name} (made again)")


def implicit_key(namespace: str, workload: str, pod_group: str, replica: str) -> GroupKey:
    """Return the key of the implicit group of a Workload's pod group and replica key.

    Each replica key is a separate gang. The key is unique, since names of Kubernetes objects cannot contain a slash.
    """
    return GroupKey(WORKLOAD, namespace, f"{workload}/{pod_group}/{replica}")
