"""Write the plain sentence of a certificate: what a group needs at once, and how close the best domain comes.

It is created from values, never from another message. Events of groups, `why`, `top`, the live table and the dashboard
show it; kube-scheduler's phrases (`messages`) stay in the conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from phalanx.engine.placement.outcome import domain_phrase, plural
from phalanx.engine.placement.problem import DEVICES, FEW_PER_NODE

INSUFFICIENT = "Insufficient "
CANNOT_ALLOCATE = "cannot allocate all claims"
INVALID_POOLS = "invalid resource pools were encountered"
CLAIM_ELSEWHERE = "resourceclaim not available on the node"
NO_DEVICES = ("Insufficient", DEVICES)  # reason for programs of CANNOT_ALLOCATE
# Beginning of a filter's fixed reason -> (reason for programs, the same for users).
_FILTERS = (
    ("node(s) didn't match Pod's node affinity/selector", "NodeSelector", "do not match its node selector or affinity"),
    ("node(s) were unschedulable", "Cordoned", "cordoned"),
    ("node(s) had untolerated taint", "Taints", ""),
    ("node(s) didn't match pod topology spread", "TopologySpread", ""),
    ("node(s) didn't match pod affinity", "PodAffinity", ""),
    ("node(s) didn't match pod anti-affinity", "PodAffinity", ""),
    ("node(s) didn't satisfy existing pods anti-affinity", "PodAffinity", ""),
    ("node(s) didn't have free ports", "HostPorts", ""),
    ("node(s) didn't match PersistentVolume's node affinity", "Volumes", ""),
    ("node(s) didn't find available persistent volumes", "Volumes", ""),
    ("node(s) had no available volume zone", "Volumes", ""),
    ("node(s) exceed max volume count", "Volumes", ""),
)

_VERBS = {"Cordoned": "are "}  # words that need one after "nodes"
# Beginning of a filter's reason -> the same with what a rule of the pod names ("lack label gpu=h100"), the more special
# beginnings first.
RuleWords = Mapping[str, str]
NO_RULES: RuleWords = {}
_OF_ONE = (("have ", "has "), ("lack ", "lacks "), ("are ", "is "), ("do not ", "does not "))


# Reason for programs -> what would have to change, after "it would fit".
_WITHOUT = {
    "NodeSelector": "without its nodeSelector and node affinity",
    "Cordoned": "without the cordon",
    "Taints": "if its pods tolerated the taint",
    "TopologySpread": "without its topologySpreadConstraints",
    "PodAffinity": "without its podAffinity and podAntiAffinity",
    "HostPorts": "with another host port",
    "Volumes": "with volumes that these nodes can use",
    "Insufficient": "after other pods there have ended",
}


class Rejected(Protocol):
    @property
    def reason(self) -> str: ...
    @property
    def nodes(self) -> int: ...


class Shortfall(Protocol):
    """A certificate, or the same as a value of an answer."""

    @property
    def group(self) -> str: ...
    @property
    def composite(self) -> bool: ...
    @property
    def key(self) -> str | None: ...
    @property
    def needed(self) -> int: ...
    @property
    def fits(self) -> int: ...
    @property
    def domains(self) -> int: ...
    @property
    def best(self) -> str | None: ...
    @property
    def limiting(self) -> str | None: ...
    @property
    def ruled_out(self) -> Sequence[Rejected]: ...
    @property
    def together(self) -> bool: ...
    @property
    def pinned(self) -> str | None: ...
    @property
    def extra(self) -> bool: ...
    @property
    def whole(self) -> bool: ...
    @property
    def inner(self) -> Shortfall | None: ...


def resource_word(name: str) -> str:
    """Return the short name of a resource: nvidia.com/gpu -> GPU, cpu -> CPU."""
    last = name.rsplit("/", 1)[-1]
    return last.upper() if last in ("cpu", "gpu") else last


def sentence_of(proof: Shortfall, rules: RuleWords = NO_RULES) -> str:
    """Return the sentence for a group that does not fit: what it needs at once, and how close the best domain comes.

    rules: the rules of its pods, to name what a filter's reason leaves out
    """
    inner = innermost(proof)
    child = proof.whole or inner is not proof
    subject = f"{_name(inner.group)} needs" if child else "Needs"
    noun = "child group" if inner.composite else "pod"
    where = ""
    if inner.key and inner.pinned:
        where = f" {domain_phrase(inner.key)} {inner.pinned}, where its running members are"
    elif inner.key:
        where = f" {domain_phrase(inner.key, 'one')}"
    if inner.key and inner.domains == 0:
        return f"{subject} {plural(inner.needed, noun)} at once{where}; no node has the label {inner.key}"
    if inner.together:
        best = f" {domain_phrase(inner.key)} {inner.best}" if inner.key and inner.best else ""
        return (
            f"{subject} {plural(inner.needed, noun)} at once{where}; "
            f"each fits alone{best}, not all together{_short(inner, rules)}"
        )
    if not inner.fits:
        room = "there is room for none"
    elif inner.best and inner.key:
        room = f"the best one, {inner.best}, has room for {inner.fits}"
    else:
        room = f"there is room for {inner.fits}"
    if proof.extra and not proof.whole:
        more = f"1 more {noun} waits" if inner.needed == 1 else f"{inner.needed} more {noun}s wait"
        return f"Its minimum runs; {more}{where}: {room}{_short(inner, rules)}"
    return f"{subject} {plural(inner.needed, noun)} at once{where}; {room}{_short(inner, rules)}"


def of_group(proof: Shortfall, rules: RuleWords, reserved: int) -> str:
    """Return the sentence for a group that does not fit, with the room that it may not use.

    reserved: number of other units for which room is reserved
    """
    others = "another group or pod" if reserved == 1 else f"{reserved} other groups and pods"
    return sentence_of(proof, rules) + (f"; free room is reserved for {others}" if reserved else "")


def of_rules(minimum: int, rules: Sequence[str]) -> str:
    """Return the sentence for a group that has room by resources, but no placement that follows the rules of its pods.

    rules: what its pods ask for beyond resources; empty if only pods that run have rules
    """
    what = "; ".join(rules) or "the podAntiAffinity or topology spread of other pods"
    needs = f"Needs {plural(minimum, 'pod')} at once; nodes" if minimum > 1 else "Nodes"
    return f"{needs} have free resources, but no placement follows all rules: {what}"


def of_nodes(reasons: Sequence[Rejected], nodes: int, rules: RuleWords = NO_RULES) -> str:
    """Return the sentence for a single pod that fits no node."""
    if not nodes:
        return "The cluster has no nodes"
    parts = [f"{reason.nodes} {because(reason.reason, reason.nodes, rules)}" for reason in reasons[:3]]
    if len(reasons) > len(parts) > 0:
        parts.append(f"{sum(reason.nodes for reason in reasons[3:])} for other reasons")
    return f"Fits none of {plural(nodes, 'node')}: {', '.join(parts)}" if parts else ""


def innermost(proof: Shortfall) -> Shortfall:
    """Return the part of the tree that has no place."""
    while proof.inner is not None:
        proof = proof.inner
    return proof


def _name(group: str) -> str:
    return group.rsplit("/", 1)[-1]


def _short(proof: Shortfall, rules: RuleWords) -> str:
    if proof.limiting == FEW_PER_NODE:
        return " (one node takes only so many of them: host port or podAntiAffinity)"
    if proof.limiting:
        return f" (short of {resource_word(proof.limiting)})"
    worst = max(proof.ruled_out, key=_size, default=None)
    return f" ({_nodes_because(worst.reason, rules)})" if worst is not None else ""


def _nodes_because(reason: str, rules: RuleWords) -> str:
    """Return a reason as a clause of its own: without the number of nodes before it."""
    if named := _named(reason, rules):
        return f"nodes {named}"
    code, resource = code_of_filter(reason)
    return because(reason) if resource or code == "DoesNotFit" else f"nodes {_VERBS.get(code, '')}{because(reason)}"


def _size(out: Rejected) -> int:
    return out.nodes


def because(reason: str, nodes: int = 0, rules: RuleWords = NO_RULES) -> str:
    """Return a filter's reason as it follows a number of nodes."""
    if named := _named(reason, rules):
        plural_verb, verb = next(((many, one) for many, one in _OF_ONE if named.startswith(many)), ("", ""))
        return verb + named.removeprefix(plural_verb) if nodes == 1 else named
    if reason.startswith(INSUFFICIENT):
        return f"short of {resource_word(reason.removeprefix(INSUFFICIENT))}"
    if reason == CANNOT_ALLOCATE:
        return "lacks free devices for its claims" if nodes == 1 else "lack free devices for its claims"
    words = next((words for start, _, words in _FILTERS if words and reason.startswith(start)), "")
    return words or reason.removeprefix("node(s) ")


def _named(reason: str, rules: RuleWords) -> str:
    return next((words for start, words in rules.items() if reason.startswith(start)), "")


def code_of_filter(reason: str) -> tuple[str, str]:
    """Return (reason for programs, resource if one is short) of a filter's reason."""
    if reason.startswith(INSUFFICIENT):
        return "Insufficient", reason.removeprefix(INSUFFICIENT)
    if reason == CANNOT_ALLOCATE:
        return NO_DEVICES
    return next((code for start, code, _ in _FILTERS if reason.startswith(start)), "DoesNotFit"), ""


def about_devices(reason: str) -> bool:
    """Return True for the reasons of a filter without which the pod would have no devices."""
    return reason in (CANNOT_ALLOCATE, INVALID_POOLS, CLAIM_ELSEWHERE)


def without(reason: str, plugin: str) -> str:
    """Return what would have to change for a filter to accept more nodes."""
    if reason.startswith("node(s) didn't satisfy existing pods"):
        return "without the podAntiAffinity of running pods"
    return _WITHOUT.get(code_of_filter(reason)[0], f"without the filter {plugin}")


def code_of_proof(proof: Shortfall) -> tuple[str, str]:
    """Return (reason for programs, resource if one is short) of a group that does not fit."""
    proof = innermost(proof)
    if proof.key and proof.domains == 0:
        return "NoDomain", ""
    if proof.limiting == FEW_PER_NODE:
        return "FewPerNode", ""
    if proof.limiting:
        return "Insufficient", proof.limiting
    worst = max(proof.ruled_out, key=_size, default=None)
    return code_of_filter(worst.reason) if worst is not None else ("DoesNotFit", "")


def sentence_case(text: str) -> str:
    return text[:1].upper() + text[1:]
