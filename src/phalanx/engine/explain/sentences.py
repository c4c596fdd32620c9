"""Write the one sentence that answers "why is it pending" for a user who does not know the filters.

Groups that do not fit have theirs from `placement.plain`; here are those of single pods, incomplete and held units.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from phalanx.engine.explain.rule_words import few, rule_words
from phalanx.engine.explain.values import Level, NodeReason, Proof
from phalanx.engine.framework.cluster_state import ClusterState
from phalanx.engine.placement.outcome import plural
from phalanx.engine.placement.plain import NO_RULES, RuleWords, because, sentence_of
from phalanx.engine.scheduling.queue.units import Gate, SchedulingUnit
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups import Group
from phalanx.model.objects.devices import ResourceClaim

MOST_RULES = 8  # maximum number of shapes of one unit whose rules are named


def of_missing(level: Level) -> str:
    """Return the sentence for a group whose members have not all been created."""
    noun = "child groups" if level.kind == "CompositePodGroup" else "pods"
    return f"Waits until {noun} are created: {level.name} has {level.known} of {level.minimum}"


def missing_members(group: Group) -> str:
    """Return the sentence for a leaf group that lacks its object or members; empty if it lacks none."""
    if group.spec is None:
        return f"{group.key.kind} {group.key.name} does not exist in namespace {group.key.namespace}"
    if group.known >= group.spec.minimum:
        return ""
    return of_missing(Level(group.key.kind, group.key.name.rstrip("/"), known=group.known, minimum=group.spec.minimum))


def of_nodes(reasons: Sequence[NodeReason], nodes: int, rules: RuleWords = NO_RULES) -> str:
    """Return the sentence for a single pod that fits no node."""
    if not nodes:
        return "The cluster has no nodes"
    parts = [f"{reason.nodes} {because(reason.reason, reason.nodes, rules)}" for reason in reasons[:3]]
    if len(reasons) > len(parts) > 0:
        parts.append(f"{sum(reason.nodes for reason in reasons[3:])} for other reasons")
    return f"Fits none of {plural(nodes, 'node')}: {', '.join(parts)}" if parts else ""


def of_group(proof: Proof, rules: RuleWords, reserved: int) -> str:
    """Return the sentence for a group that does not fit.

    reserved: number of other units for which room is reserved
    """
    others = "another group or pod" if reserved == 1 else f"{reserved} other groups and pods"
    return sentence_of(proof, rules) + (f"; free room is reserved for {others}" if reserved else "")


def of_gate(state: ClusterState, unit: SchedulingUnit, gate: Gate) -> str:
    """Return the sentence for a unit that may not be tried yet, from what its pods lack, else from the gate."""
    plugin, message = gate
    pods = [record.pod for record in unit.records.values() if record.pod is not None]
    gated = [pod for pod in pods if pod.spec.scheduling_gates]
    names = dict.fromkeys(each.name for pod in gated for each in pod.spec.scheduling_gates or ())
    if names:
        what = f"scheduling gate{'s' * (len(names) > 1)} {few(names, 'and')}"
        if len(pods) == 1:
            return f"Waits until its {what} {'are' if len(names) > 1 else 'is'} removed"
        return f"{len(gated)} of its {len(pods)} pods {'has' if len(gated) == 1 else 'have'} {what}"
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


def rules_of(state: ClusterState, shapes: Iterable[Shape]) -> RuleWords:
    """Return the words for the rules of several shapes; the first shape with a rule names it."""
    found: dict[str, str] = {}
    for shape in list(dict.fromkeys(shapes))[:MOST_RULES]:
        for start, words in rule_words(state.columns, state.objects, shape).items():
            found.setdefault(start, words)
    return found


def sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]
