"""Describe how a helpful change can be applied: several fields cannot be changed after creation."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phalanx.base.well_known import JOB_SET_NAME, POD_TEMPLATE_HASH
from phalanx.engine.explain.values import Relaxation
from phalanx.model.groups import Group
from phalanx.model.groups.keys import TRANSLATED_FROM
from phalanx.model.objects.meta import ObjectMeta

# Kinds that replace pods of an old template.
_ROLLED_OUT = ("deployment", "statefulset", "daemonset", "replicationcontroller", "leaderworkerset")
# Reason for programs -> (field of the pod, what to apply instead).
_RULES = {
    "NodeSelector": ("nodeSelector and affinity", "with others"),
    "PodAffinity": ("affinity", "with another one"),
    "TopologySpread": ("topologySpreadConstraints", "with others"),
    "HostPorts": ("ports", "with another hostPort, or without one"),
    "Taints": ("tolerations", "with a toleration"),
}
# What can be changed in a PodGroup of another scheduler, where the fields have other names.
_OF_DIALECTS = {"topology": "the topology constraint", "members": "the minimum"}
# Label of pods -> the kind that made their controller.
_MADE_FOR = {JOB_SET_NAME: "JobSet", "leaderworkerset.sigs.k8s.io/name": "LeaderWorkerSet"}


def with_how(found: Sequence[Relaxation], what: str, namespace: str, *, owned: bool) -> list[Relaxation]:
    """Add to each change how to apply it.

    what: "jobset/train": the object that a user deletes and applies again
    owned: the group, or the pod, is written by the controller of that object
    """
    return [
        msgspec.structs.replace(each, how=each.how or _how(each, what, namespace, owned)) if each.fits else each
        for each in found
    ]


def _how(change: Relaxation, what: str, namespace: str, owned: bool) -> str:
    group = not owned and not what.startswith("pod/")  # a group that pods use is not deleted without them
    again = f"delete {what} and its pods, and apply them again" if group else f"delete {what} and apply it again"
    if change.change in _OF_DIALECTS and "." in what.partition("/")[0]:
        return f"change {_OF_DIALECTS[change.change]} in {what}"
    if change.change == "topology":
        rest = f"with the topology key {change.to}" if change.to else "without schedulingConstraints"
        return f"schedulingConstraints cannot be changed after creation: {again} {rest}"
    if change.change == "members" and what.startswith("workload/"):
        return f"the policies of a Workload cannot be changed after creation: {again} with minCount {change.to}"
    if change.change == "members" and owned:
        return f"change it in {what}, whose controller writes the group"
    if change.change == "members":
        name = "minGroupCount" if change.text.startswith("minGroupCount") else "minCount"
        patch = f'{{"spec":{{"schedulingPolicy":{{"gang":{{"{name}":{change.to}}}}}}}}}'
        return f"kubectl patch {what} -n {namespace} --type merge -p '{patch}'"
    return _other_template(change, what, f"delete the pods of {what} and apply them again" if group else again)


def _other_template(change: Relaxation, what: str, again: str) -> str:
    """Return how to apply a change of the pods' rules: they cannot be changed in a pod, but in some templates."""
    if change.reason == "Cordoned":
        return "kubectl uncordon NODE"
    if "of running pods" in change.text:
        return ""
    field, rest = _RULES.get(change.reason, ("", ""))
    if not field:
        return ""
    kind = what.partition("/")[0]
    if kind in _ROLLED_OUT:
        text = f"change {field} in the pod template of {what}"
        text += ", and delete its pods that wait" if kind == "statefulset" else ""  # it waits until they are ready
    else:
        text = f"{field} of a pod cannot be changed: {again} {rest}"
    if change.reason == "Taints":
        return f"kubectl taint nodes NODE TAINT- removes a taint from a node; {text}"
    return text


def owner_of_pod(metadata: ObjectMeta) -> str:
    """Return "Job train", the object that controls a pod; "" if none does. For a ReplicaSet of a Deployment, that.

    For the Jobs of a JobSet and the StatefulSets of a LeaderWorkerSet, these.
    """
    for each in metadata.owner_references or ():
        if each.controller:
            for label, kind in _MADE_FOR.items():
                if name := metadata.labels.get(label):
                    return f"{kind} {name}"
            suffix = f"-{metadata.labels.get(POD_TEMPLATE_HASH, '')}"
            if each.kind == "ReplicaSet" and len(suffix) > 1 and each.name.endswith(suffix):
                return f"Deployment {each.name.removesuffix(suffix)}"
            return f"{each.kind} {each.name}"
    return ""


def applied_object(owner: str, group: Group) -> str:
    """Return "jobset/train" as kubectl names it: the owner ("JobSet train"), or the group itself.

    For the translation of a PodGroup of another scheduler, that PodGroup.
    """
    if foreign := translated_from(group):
        return foreign
    key = group.key
    kind, _, name = owner.partition(" ")
    return f"{kind.lower()}/{name}" if name else f"{key.kind.lower()}/{key.name.partition('/')[0]}"


def translated_from(group: Group) -> str:
    """Return the PodGroup of another scheduler that a group stands for; "" if it is a group of its own."""
    return group.source.metadata.annotations.get(TRANSLATED_FROM, "") if group.source is not None else ""
