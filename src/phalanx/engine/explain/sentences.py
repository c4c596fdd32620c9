"""Write one sentence why a unit is pending, for users who do not know the filters.

Sentences of groups that do not fit are in `placement.plain`; here are those of single pods, incomplete and held units.
"""

from __future__ import annotations

from collections.abc import Iterable

from phalanx.engine.explain.values import Level
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.placement.outcome import plural
from phalanx.engine.placement.plain import sentence_case
from phalanx.engine.placement.rule_words import few
from phalanx.engine.scheduling.queue.units import Gate, SchedulingUnit
from phalanx.model.groups import Group, GroupForest, GroupKey, MemberState
from phalanx.model.objects import Pod
from phalanx.model.objects.devices import ResourceClaim


def of_missing(level: Level) -> str:
    """Return the sentence for a group whose members have not all been created."""
    noun = "child groups" if level.kind == "CompositePodGroup" else "pods"
    return f"Waits until {noun} are created: {level.name} has {level.known} of {level.minimum}"


def missing_in_tree(forest: GroupForest, root: GroupKey) -> tuple[str, str]:
    """Return (reason for programs, sentence) for the first group below `root` that lacks its object, pods or child
    groups; empty if none does. Leaves come first: what a tree lacks is mostly pods."""
    tree = [] if forest.resolve(root).cycle else forest.tree(root)
    for group in (*forest.leaves(root), *(each for each in tree if each.composite)):
        if sentence := missing_members(group):
            return "MembersMissing" if group.spec is not None else "GroupMissing", sentence
    return "", ""


def missing_members(group: Group) -> str:
    """Return the sentence for a group that lacks its object, pods or child groups; empty if it lacks none."""
    if group.spec is None:
        return f"{group.key.kind} {group.key.name} does not exist in namespace {group.key.namespace}"
    known = group.ready_children if group.composite else group.known
    if known >= group.spec.minimum:
        return ""
    others = [member.pod for member in group.members.values() if member.state is MemberState.FOREIGN]
    if others:
        names = few(dict.fromkeys(pod.spec.scheduler_name for pod in others), "and")
        pods = f"{plural(len(others), 'pod')} of {group.key.name.rstrip('/')}"
        needs = f"it has {group.known} of the {group.spec.minimum} that it needs here"
        return f"{pods} {'is' if len(others) == 1 else 'are'} for the scheduler {names} (spec.schedulerName); {needs}"
    return of_missing(Level(group.key.kind, group.key.name.rstrip("/"), known=known, minimum=group.spec.minimum))


def of_gate(state: ClusterState, unit: SchedulingUnit, gate: Gate) -> str:
    """Return the sentence for a unit that may not be tried yet, from what its pods lack, else from the gate."""
    plugin, message = gate
    pods = [record.pod for record in unit.records.values() if record.pod is not None]
    if sentence := gates_sentence(pods) or _claims_to_come(pods):
        return sentence
    missing = dict.fromkeys(
        use.claim
        for shape in dict.fromkeys(record.shape for record in unit.records.values())
        for use in shape.claims
        if use.claim[1] and state.objects.get(ResourceClaim, *use.claim) is None
    )
    if missing:
        (namespace, _), *_ = missing
        return f"ResourceClaim {few((name for _, name in missing), 'and')} does not exist in namespace {namespace}"
    return f"Held by {plugin}: {message}" if plugin and unit.group is None else sentence_case(message)


def gates_sentence(all_pods: Iterable[Pod | None]) -> str:
    """Return the sentence for pods of a unit with scheduling gates; empty if none has any."""
    pods = [pod for pod in all_pods if pod is not None]
    gated = [pod for pod in pods if pod.spec.scheduling_gates]
    names = dict.fromkeys(each.name for pod in gated for each in pod.spec.scheduling_gates or ())
    if not names:
        return ""
    what = f"scheduling gate{'s' * (len(names) > 1)} {few(names, 'and')}"
    if len(pods) == 1:
        return f"Waits until its {what} {'are' if len(names) > 1 else 'is'} removed"
    return f"{len(gated)} of its {len(pods)} pods {'has' if len(gated) == 1 else 'have'} {what}"


def _claims_to_come(pods: Iterable[Pod]) -> str:
    """Return the sentence for pods whose claims their templates have not given yet; empty if there is none."""
    waiting: dict[str, str] = {}  # claim in the pod -> its template
    for pod in pods:
        made = {status.name for status in pod.status.resource_claim_statuses or ()}
        for claim in pod.spec.resource_claims or ():
            if claim.resource_claim_template_name and claim.name not in made:
                waiting.setdefault(claim.name, claim.resource_claim_template_name)
    if not waiting:
        return ""
    templates = few(dict.fromkeys(waiting.values()), "and")
    return f"Waits until claim {few(waiting, 'and')} is created from ResourceClaimTemplate {templates}"
