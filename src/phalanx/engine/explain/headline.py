"""Write the one sentence that answers "why is it pending" for a user who does not know the filters.

It is created from values, never from another message. `why`, `top`, the live table and the dashboard show the same
sentence; kube-scheduler's text stays in the conditions.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.engine.explain.values import Level, NodeReason, Proof, RuledOutDomains
from phalanx.engine.placement.messages import domain_word, plural

_INSUFFICIENT = "Insufficient "


def resource_word(name: str) -> str:
    """Return the short name of a resource: nvidia.com/gpu -> GPU, cpu -> CPU."""
    last = name.rsplit("/", 1)[-1]
    return last.upper() if last in ("cpu", "gpu") else last


def of_proof(proof: Proof) -> str:
    """Return the sentence for a group that does not fit: what it needs at once, and how close the best domain comes."""
    inner = proof
    while inner.inner is not None:
        inner = inner.inner
    child = inner is not proof
    who = f"{_name(inner.group)} needs" if child else "Needs"
    noun = "child group" if inner.composite else "pod"
    where = ""
    if inner.key and inner.pinned:
        where = f" in {domain_word(inner.key)} {inner.pinned}, where its running members are"
    elif inner.key:
        where = f" in one {domain_word(inner.key)}"
    if inner.key and inner.domains == 0:
        return f"{who} {plural(inner.needed, noun)} at once{where}; no node has the label {inner.key}"
    if inner.together:
        best = f" in {domain_word(inner.key)} {inner.best}" if inner.key and inner.best else ""
        return (
            f"{who} {plural(inner.needed, noun)} at once{where}; each fits alone{best}, not all together{_short(inner)}"
        )
    if not inner.fits:
        room = "there is room for none"
    elif inner.best and inner.key:
        room = f"the best one, {inner.best}, has room for {inner.fits}"
    else:
        room = f"there is room for {inner.fits}"
    return f"{who} {plural(inner.needed, noun)} at once{where}; {room}{_short(inner)}"


def of_missing(level: Level) -> str:
    """Return the sentence for a group whose members have not all been created."""
    noun = "child groups" if level.kind == "CompositePodGroup" else "pods"
    return f"Waits until {noun} are created: {level.name} has {level.known} of {level.minimum}"


def of_nodes(reasons: Sequence[NodeReason], nodes: int) -> str:
    """Return the sentence for a single pod that fits no node."""
    if not nodes:
        return "The cluster has no nodes"
    parts = [f"{reason.nodes} {_because(reason.reason)}" for reason in reasons[:3]]
    return f"Fits none of {plural(nodes, 'node')}: {', '.join(parts)}" if parts else ""


def sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]


def _name(group: str) -> str:
    return group.rsplit("/", 1)[-1]


def _short(proof: Proof) -> str:
    if proof.limiting:
        return f" (short of {resource_word(proof.limiting)})"
    worst = max(proof.ruled_out, key=_size, default=None)
    return f" ({_because(worst.reason)})" if worst is not None else ""


def _size(out: RuledOutDomains) -> int:
    return out.nodes


def _because(reason: str) -> str:
    if reason.startswith(_INSUFFICIENT):
        return f"short of {resource_word(reason.removeprefix(_INSUFFICIENT))}"
    return {
        "node(s) didn't match Pod's node affinity/selector": "do not match its node selector or affinity",
        "node(s) were unschedulable": "cordoned",
    }.get(reason, reason.removeprefix("node(s) "))
