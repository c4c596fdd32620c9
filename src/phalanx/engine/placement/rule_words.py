"""Name the details that a filter's reason omits: label, taint, port, volume, or the pods that a rule selects.

Reads the rules of a shape, the taints of nodes and the storage objects; evaluates nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import numpy as np

from phalanx.base.well_known import UNSCHEDULABLE_TAINT
from phalanx.engine.placement.outcome import amount_word, domain_phrase, domain_word
from phalanx.engine.placement.plain import RuleWords
from phalanx.engine.state.columns import PODS, Bools, Columns
from phalanx.engine.state.objects import Objects
from phalanx.engine.state.pod_rules import ANTI, HARD, REQUIRED, own_constraints, terms_of_shape
from phalanx.engine.state.shapes import Shape
from phalanx.model.groups.keys import HOSTNAME
from phalanx.model.objects import PersistentVolume, PersistentVolumeClaim, StorageClass
from phalanx.model.objects.cluster import Taint
from phalanx.model.objects.devices import DeviceClass, ResourceClaim
from phalanx.model.objects.pod import NodeSelector
from phalanx.model.selectors import LabelMatcher
from phalanx.model.tolerations import untolerated

MOST_RULES = 8  # maximum number of shapes of one unit whose rules are named
MOST_NAMED = 3  # maximum number of labels, taints, ports or values that one phrase names


def rule_words(columns: Columns, objects: Objects, shape: Shape) -> RuleWords:
    """Return (beginning of a filter's reason, what follows "N nodes …") for the rules that a shape has."""
    found = dict(_affinity(shape))
    if shape.node_selector or required_terms(shape) is not None:
        found["node(s) didn't match Pod's node affinity/selector"] = _node_affinity(shape)
    if taints := _taints(columns, shape):
        found["node(s) had untolerated taint"] = f"have taint {few(taints, 'or')}"
    if shape.host_ports:
        ports = [f"{port}{'' if protocol == 'TCP' else '/' + protocol}" for _, protocol, port in shape.host_ports]
        found["node(s) didn't have free ports"] = f"have host port {few(ports, 'or')} in use"
    spread = own_constraints(shape, HARD)
    if spread:
        keys = few(dict.fromkeys(each.key for each in spread), "or")
        found["node(s) didn't match pod topology spread constraints (missing"] = f"lack label {keys} {_SPREAD_KEY}"
        rules = [
            f"{selected(each.matcher)} {domain_phrase(each.key, 'one')} (maxSkew {each.max_skew})" for each in spread
        ]
        found["node(s) didn't match pod topology spread"] = f"would have too many pods with {few(rules, 'or')}"
    found |= _volumes(objects, shape)
    return found


class NodesAndObjects(Protocol):
    """The part of the cluster state that rules are about."""

    @property
    def columns(self) -> Columns: ...
    @property
    def objects(self) -> Objects: ...


def rules_of(state: NodesAndObjects, shapes: Iterable[Shape]) -> RuleWords:
    """Return the words for the rules of several shapes; the first shape with a rule names it."""
    found: dict[str, str] = {}
    for shape in list(dict.fromkeys(shapes))[:MOST_RULES]:
        for start, words in rule_words(state.columns, state.objects, shape).items():
            found.setdefault(start, words)
    return found


def rules_beyond_resources(shapes: Iterable[Shape]) -> list[str]:
    """Return the rules about other pods, volumes and devices that these pods have, for a group that has room by
    resources."""
    found: dict[str, None] = {}
    for shape in list(dict.fromkeys(shapes))[:MOST_RULES]:
        for term in terms_of_shape(shape):
            where = domain_phrase(term.key, "the same")
            if term.kind == REQUIRED:
                found[f"a pod with {selected(term.matcher)} {where} (podAffinity)"] = None
            elif term.kind == ANTI:
                found[f"no pod with {selected(term.matcher)} {where} (podAntiAffinity)"] = None
        for each in own_constraints(shape, HARD):
            text = f"{selected(each.matcher)} spread by {domain_word(each.key)} with maxSkew {each.max_skew}"
            found[f"{text} (topologySpreadConstraints)"] = None
        if claims := [name for name, _ in _claims(shape)]:
            found[f"a node that can use the volume of claim {few(claims, 'and')}"] = None
        if shape.claims:
            found["free devices for the claims of all pods at once"] = None
    return list(found)


def too_large(columns: Columns, shape: Shape, rows: Bools, only: str = "") -> Iterator[str]:
    """Yield a sentence for each request of a shape that is larger than what any of these nodes has.

    rows: the nodes that it may use, shape (n,), at least one
    only: what restricts these nodes, behind "no node" and "the largest node"
    """
    for rid, amount in shape.requests:
        name = columns.resource_names[rid]
        largest = float(columns.alloc[rid, : columns.n][rows].max())
        if rid == PODS or amount <= largest:
            continue
        if largest == 0:
            yield f"no node{only} offers {name}"
        else:
            yield (
                f"a pod asks for {amount_word(name, amount)} {name}; the largest node{only} has "
                f"{amount_word(name, largest)}: this can never fit on the nodes there are"
            )


def claim_facts(objects: Objects, shape: Shape) -> Iterator[str]:
    """Yield a sentence for each device class that a claim of a shape names and that does not exist."""
    for use in shape.claims:
        claim = objects.get(ResourceClaim, *use.claim) if use.claim[1] else None
        spec = use.spec or (claim.spec if claim is not None else None)
        for request in spec.devices.requests if spec is not None else ():
            exact = (request.exactly,) if request.exactly is not None else ()
            for part in (*exact, *request.first_available):
                name = part.device_class_name
                if objects.get(DeviceClass, "", name) is None:
                    yield f"DeviceClass {name} does not exist (request {request.name} of its ResourceClaim)"


def missing_topology(columns: Columns, shape: Shape) -> Iterator[str]:
    """Yield a sentence for each topology key of a required rule that no node has as a label."""
    keys = {term.key: "(topologyKey of its podAffinity)" for term in terms_of_shape(shape) if term.kind == REQUIRED}
    keys |= {each.key: _SPREAD_KEY for each in own_constraints(shape, HARD)}
    for key, rule in keys.items():
        if not columns.label(key).ids[: columns.n].any():
            yield f"no node has label {key} {rule}"


def volume_facts(objects: Objects, shape: Shape) -> Iterator[str]:
    """Yield a sentence for each claim of a shape that no node could give to its pods now."""
    for name, ephemeral in _claims(shape):
        claim = objects.get(PersistentVolumeClaim, shape.namespace, name)
        what = f"PersistentVolumeClaim {name}"
        if claim is None:
            yield (
                f"{what} of a generic ephemeral volume has not been created yet"
                if ephemeral
                else f"{what} does not exist in namespace {shape.namespace}"
            )
        elif claim.status.phase == "Lost":
            yield f"{what} is lost: its PersistentVolume {claim.spec.volume_name} does not exist"
        elif claim.metadata.deletion_timestamp is not None:
            yield f"{what} is being deleted"
        elif not claim.spec.volume_name:
            yield from _unbound(objects, claim, what)


def selected(matcher: LabelMatcher) -> str:
    """Return a label selector as users write it: app=cache."""
    if matcher.nothing:
        return "labels that no pod has"
    rules = [
        f"{rule.key}={rule.values[0]}" if rule.operator in ("In", "=", "==") and len(rule.values) == 1 else str(rule)
        for rule in matcher.requirements
    ]
    return ",".join(rules) or "any labels"


def few(names: Iterable[str], last: str) -> str:
    """Join names: a, b or c. At most MOST_NAMED of them."""
    known = list(names)
    if len(known) > MOST_NAMED:
        return f"{', '.join(known[:MOST_NAMED])} {last} {len(known) - MOST_NAMED} more"
    return f" {last} ".join(part for part in (", ".join(known[:-1]), known[-1]) if part)


_SPREAD_KEY = "(topologyKey of its topologySpreadConstraints)"


def required_terms(shape: Shape) -> NodeSelector | None:
    return shape.node_affinity.required if shape.node_affinity is not None else None


def _node_affinity(shape: Shape) -> str:
    labels = [f"{key}={value}" for key, value in shape.node_selector.items()]
    required = required_terms(shape)
    if required is None:
        return f"lack label {labels[0]}" if len(labels) == 1 else f"lack one of the labels {few(labels, 'and')}"
    return f"do not match its node affinity {' and '.join([*labels, terms(required)])}"


def terms(required: NodeSelector) -> str:
    """Return the terms of a required node affinity: gpu In h100, b200; or zone Exists."""
    found = []
    for term in required.node_selector_terms:
        each = [
            f"{rule.key} {rule.operator}{' ' + _values(rule.values) if rule.values else ''}"
            for rule in (*(term.match_expressions or ()), *(term.match_fields or ()))
        ]
        found.append(" and ".join(each))
    return "; or ".join(found)


def _values(values: Iterable[str]) -> str:
    known = list(values)
    more = f" and {len(known) - MOST_NAMED} more" if len(known) > MOST_NAMED else ""
    return ", ".join(known[:MOST_NAMED]) + more


def taint_text(taint: Taint) -> str:
    return f"{taint.key}={taint.value}:{taint.effect}" if taint.value else f"{taint.key}:{taint.effect}"


def _taints(columns: Columns, shape: Shape) -> list[str]:
    """Return the taints on nodes that the shape does not tolerate, the most frequent first; cordons are left out."""
    alive = columns.taint_set[: columns.n][columns.alive[: columns.n]]
    sets, counts = np.unique(alive, return_counts=True)
    found: dict[str, int] = {}
    for number, count in zip(sets.tolist(), counts.tolist(), strict=True):
        taint = untolerated(shape.tolerations, columns.taint_sets[number])
        if taint is not None and taint.key != UNSCHEDULABLE_TAINT:
            found[taint_text(taint)] = found.get(taint_text(taint), 0) + count
    return sorted(found, key=lambda text: (-found[text], text))


def _affinity(shape: Shape) -> Iterator[tuple[str, str]]:
    wanted, apart = [], []
    for term in terms_of_shape(shape):
        if term.kind == REQUIRED:
            wanted.append(f"{selected(term.matcher)}{_where(term.key)}")
        elif term.kind == ANTI:
            apart.append(f"{selected(term.matcher)}{_where(term.key)}")
    if wanted:
        yield "node(s) didn't match pod affinity", f"have no pod with {few(wanted, 'or')} (podAffinity)"
    if apart:
        yield "node(s) didn't match pod anti-affinity", f"have a pod with {few(apart, 'or')} (podAntiAffinity)"
    yield (
        "node(s) didn't satisfy existing pods anti-affinity",
        "are kept free of such pods by the podAntiAffinity of a running pod",
    )


def _where(key: str) -> str:
    return "" if key == HOSTNAME else f" in the same {domain_word(key)}"


def _claims(shape: Shape) -> Iterator[tuple[str, bool]]:
    """Yield (claim, whether it is created for the pod) in the pod's order, without repeats."""
    seen: set[str] = set()
    for volume in shape.volumes:
        source = volume.persistent_volume_claim
        if source is not None and source.claim_name not in seen:
            seen.add(source.claim_name)
            yield source.claim_name, volume.ephemeral is not None


def _unbound(objects: Objects, claim: PersistentVolumeClaim, what: str) -> Iterator[str]:
    name = claim.spec.storage_class_name or ""
    storage_class = objects.get(StorageClass, "", name) if name else None
    if storage_class is not None and storage_class.volume_binding_mode == "WaitForFirstConsumer":
        return  # bound together with the pod: a reason of nodes, not of the claim
    if not name:
        yield f"{what} is not bound and has no storage class: it waits for a PersistentVolume without one that fits it"
    elif storage_class is None:
        yield f"{what} is not bound: there is no StorageClass {name}"
    else:
        yield f"{what} is not bound yet: StorageClass {name} has to provide its volume"


def _volumes(objects: Objects, shape: Shape) -> Mapping[str, str]:
    unreachable, unbound = [], []
    for name, _ in _claims(shape):
        claim = objects.get(PersistentVolumeClaim, shape.namespace, name)
        volume = objects.get(PersistentVolume, "", claim.spec.volume_name) if claim is not None else None
        if volume is not None and volume.spec.node_affinity is not None and volume.spec.node_affinity.required:
            rule = terms(volume.spec.node_affinity.required)
            unreachable.append(f"{volume.metadata.name} of claim {name} (only {rule})")
        elif claim is not None and not claim.spec.volume_name:
            unbound.append(name)
    found = {}
    if unreachable:
        found["node(s) didn't match PersistentVolume's node affinity"] = (
            f"cannot use PersistentVolume {few(unreachable, 'or')}"
        )
    if unbound:
        found["node(s) didn't find available persistent volumes"] = (
            f"have no PersistentVolume for claim {few(unbound, 'or')}"
        )
    return found
