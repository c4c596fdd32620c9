"""Say how a change that would help can be applied: several of the fields cannot be changed after creation."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from phalanx.engine.explain.values import Relaxation
from phalanx.model.groups import GroupKey
from phalanx.model.objects.meta import ObjectMeta


def with_how(found: Sequence[Relaxation], what: str, *, owned: bool) -> list[Relaxation]:
    """Add to each change how to apply it.

    what: "jobset/train": the object that a user deletes and applies again
    owned: the group is written by the controller of that object
    """
    return [msgspec.structs.replace(each, how=_how(each, what, owned)) if each.fits else each for each in found]


def _how(change: Relaxation, what: str, owned: bool) -> str:
    again = f"delete {what} and apply it again"
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
        return f"kubectl patch {what} --type merge -p '{patch}'"
    return {
        "NodeSelector": f"nodeSelector and affinity of a pod cannot be changed: {again} with others",
        "Taints": f"remove the taint from the nodes, or {again} with a toleration",
        "Cordoned": "kubectl uncordon NODE",
    }.get(change.reason, "")


def owner_of_pod(metadata: ObjectMeta) -> str:
    """Return "Job train", the object that controls a pod; "" if none does."""
    return next((f"{each.kind} {each.name}" for each in metadata.owner_references or () if each.controller), "")


def applied_object(owner: str, key: GroupKey) -> str:
    """Return "jobset/train" as kubectl names it: the owner ("JobSet train"), or the group itself."""
    kind, _, name = owner.partition(" ")
    return f"{kind.lower()}/{name}" if name else f"{key.kind.lower()}/{key.name.partition('/')[0]}"
