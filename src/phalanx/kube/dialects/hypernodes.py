"""Volcano's HyperNodes as node labels: one key per tier, the value is the HyperNode that contains the node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from phalanx.base.client import Resource
from phalanx.model.objects.meta import ObjectMeta, Struct
from phalanx.model.pattern import compiled
from phalanx.model.selectors import from_selector

RESOURCE = Resource("topology.volcano.sh", "v1alpha1", "hypernodes", "HyperNode", namespaced=False)
MOST_TIERS = 32


class HyperNodeSpec(Struct, frozen=True):
    tier: int = 0
    members: Any = None
    tier_name: str = ""


class HyperNode(Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: HyperNodeSpec = HyperNodeSpec()


def tier_label(tier: int) -> str:
    return f"topology.volcano.sh/tier-{tier}"


def tier_name_label(name: str) -> str:
    return f"topology.volcano.sh/tier-name-{name}"


def labels(hypernodes: Mapping[str, HyperNode], nodes: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """Return the labels of every node, from HyperNodes by name and node labels by node name.

    A node that is in no HyperNode of a tier has the value of the tier below, so that a domain of tier n contains
    everything that is closer than tier n.
    """
    tiers = sorted({max(0, hyper.spec.tier) for hyper in hypernodes.values()})[:MOST_TIERS]
    names: dict[int, set[str]] = {}
    for hyper in hypernodes.values():
        names.setdefault(max(0, hyper.spec.tier), set()).add(hyper.spec.tier_name)
    found: dict[str, dict[int, str]] = {name: {} for name in nodes}
    contents: dict[str, set[str]] = {}
    for hyper in sorted(hypernodes.values(), key=lambda hyper: (hyper.spec.tier, hyper.metadata.name)):
        name = hyper.metadata.name
        contents[name] = set(_nodes(hyper, contents, nodes))
        for node in contents[name]:
            found[node].setdefault(max(0, hyper.spec.tier), name)
    result: dict[str, dict[str, str]] = {}
    for node, by_tier in found.items():
        value, result[node] = "", {}
        for tier in tiers:
            value = by_tier.get(tier, value)
            if value:
                result[node][tier_label(tier)] = value
                for name in names[tier] - {""}:
                    result[node].setdefault(tier_name_label(name), value)
    return result


def _nodes(hyper: HyperNode, contents: Mapping[str, set[str]], nodes: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    members = hyper.spec.members if isinstance(hyper.spec.members, list) else []
    for member in members:
        selector = member.get("selector") if isinstance(member, dict) else None
        if not isinstance(selector, dict):
            continue
        if member.get("type") == "HyperNode":
            for name in _names(selector, contents):
                yield from contents[name]
        else:
            yield from _names(selector, nodes)
            if isinstance(selector.get("labelMatch"), dict):
                try:
                    matcher = from_selector(selector["labelMatch"])
                except (ValueError, TypeError, AttributeError):
                    continue  # an invalid selector selects no node
                yield from (name for name, of_node in nodes.items() if matcher.matches(of_node))


def _names(selector: Mapping[str, Any], names: Mapping[str, object]) -> Iterator[str]:
    exact, pattern = selector.get("exactMatch"), selector.get("regexMatch")
    if isinstance(exact, dict) and exact.get("name") in names:
        yield exact["name"]
    if isinstance(pattern, dict) and isinstance(pattern.get("pattern"), str):
        expression = compiled(pattern["pattern"])
        if expression is not None:
            yield from (name for name in names if expression.search(name))
