"""Small full clusters and something more important that wants in; and what that costs at least, by trying everything.

Nothing here asks the engine: costs are counted from the objects, and whether the preemptor fits is what the reference
filters say when its pods arrive one after the other, in every order, on every node.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any

import msgspec

from phalanx.engine.preemption import cost as order
from phalanx.model.objects import Node, Pod
from phalanx.testing.builders import composite, node, pdb, pod, pod_group
from support import reference

HIGH = 100
NOW = 1_000_000.0
KINDS = ("pod", "pod with rules", "gang", "mixed gang", "rack gang", "tree", "tied gang", "hindered gang", "tied tree")
RULES = ("NodePorts", "NodeResourcesFit", "PodTopologySpread", "InterPodAffinity")
PLUGINS = [plugin for plugin in reference.PLUGINS if plugin.name in RULES]
Key = tuple[float, ...]  # parts of a cost, most important first
PARTS = ("budgets", "priority", "stopped", "pods", "gangs", "workloads", "work")


@dataclass
class Victim:
    """A pod that may be evicted."""

    name: str
    priority: int  # of its root
    leaf: str = ""  # its PodGroup
    unit: str = ""  # what is evicted with it
    labels: dict[str, str] = field(default_factory=dict)
    started: float = 0.0


@dataclass
class Group:
    name: str
    minimum: int
    key: str = ""
    pods: list[Any] = field(default_factory=list)
    children: list[Group] = field(default_factory=list)


@dataclass
class Crowd:
    objects: list[Any] = field(default_factory=list)  # everything but the preemptor
    victims: list[Victim] = field(default_factory=list)
    gangs: dict[str, int] = field(default_factory=dict)  # leaf -> minCount
    budgets: dict[str, int] = field(default_factory=dict)  # team -> disruptions allowed
    preemptor: list[Any] = field(default_factory=list)
    root: Group = field(default_factory=lambda: Group("high", 1))
    tied: bool = False  # the order in which members arrive matters

    @property
    def kind(self) -> str:
        if self.root.name == "lone":
            return "Pod"
        return "PodGroup" if self.root.pods else "CompositePodGroup"

    @cached_property
    def built(self) -> list[Any]:
        return [each.build() for each in self.objects]

    @cached_property
    def nodes(self) -> list[Node]:
        return [each for each in self.built if isinstance(each, Node)]

    @cached_property
    def pods(self) -> list[Pod]:
        return [each for each in self.built if isinstance(each, Pod)]


def crowd(seed: int, kind: str, units: int = 8) -> Crowd:
    rng = random.Random(f"{kind} {seed}")
    made = Crowd()
    count = rng.randint(2, 4)
    for team in ("red", "blue"):
        if rng.random() < 0.5:
            made.budgets[team] = rng.randrange(3)
            made.objects.append(pdb(team).select({"team": team}).allowed(made.budgets[team]))
    _groups(rng, made)
    room = [rng.randint(2, 6) for _ in range(count)]
    for at in range(count):
        made.objects.append(
            node(f"n{at}").cpu(str(room[at])).mem("8Gi").label("rack", f"r{at % 2}").label("zone", f"z{at // 2}")
        )
        if rng.random() < 0.15:
            room[at] -= 1
            made.objects.append(_dress(rng, pod(f"stays{at}").cpu("1").mem("1Gi").priority(1000).node(f"n{at}"), kind))
    number = 0
    while len({v.unit for v in made.victims}) < units and number < 14 and max(room) > 0:
        at = rng.choice([i for i in range(count) if room[i]])
        size = rng.randint(1, min(3, room[at]))
        room[at] -= size
        _victim(rng, made, f"p{number}", at, size, kind)
        number += 1
    _preemptor(rng, made, kind)
    return made


def _groups(rng: random.Random, made: Crowd) -> None:
    made.objects.append(composite("whole").gang(1).priority(1).disrupt_all())
    for name in ("single", "other", "all", "under", "basic"):
        priority = 1 if name == "under" else rng.randrange(3)
        group = pod_group(name).priority(priority)
        if name == "basic":
            group.basic()
        else:
            made.gangs[name] = rng.randint(1, 3)
            group.gang(made.gangs[name])
        if name == "all":
            group.disrupt_all()
        if name == "under":
            group.parent("whole")
        made.objects.append(group)


def _victim(rng: random.Random, made: Crowd, name: str, at: int, size: int, kind: str) -> None:
    groups = {o.build().metadata.name: o.build().spec.priority for o in made.objects if hasattr(o, "disrupt_all")}
    leaf = rng.choice(["", "", "", "single", "single", "other", "all", "under", "basic"])
    priority = groups[leaf] if leaf else rng.randrange(3)
    unit = {"all": "all", "under": "whole"}.get(leaf, name)
    started = NOW - rng.randrange(1, 50) * 10.0
    labels = {"team": rng.choice(("red", "blue"))} if rng.random() < 0.4 else {}
    one = pod(name).cpu(str(size)).mem(f"{rng.randint(0, 2)}Gi").priority(priority).node(f"n{at}").started(started)
    for key, value in labels.items():
        one.label(key, value)
    if leaf:
        one.group(leaf)
    _dress(rng, one, kind)
    made.objects.append(one)
    made.victims.append(Victim(name, priority, leaf, unit, labels, started))


def _dress(rng: random.Random, one: Any, kind: str) -> Any:
    """What rules of the preemptor look at."""
    if "rules" in kind or "hindered" in kind or "tied" in kind:
        if rng.random() < 0.4:
            one.label("app", rng.choice(("old", "old", "web", "web", "new")))
        if rng.random() < 0.2:
            one.port(rng.choice((80, 81)))
        if rng.random() < 0.1:
            one.anti_affinity(rng.choice(("kubernetes.io/hostname", "zone")), {"app": "new"})
    return one


def _preemptor(rng: random.Random, made: Crowd, kind: str) -> None:
    def member(name: str, cpu: int, group: str = "") -> Any:
        one = pod(name).cpu(str(cpu)).mem(f"{rng.randint(0, 2)}Gi").priority(HIGH).label("app", "new")
        return one.group(group) if group else one

    if kind in ("pod", "pod with rules"):
        one = member("lone", rng.randint(2, 5))
        if kind == "pod with rules":
            _rule(rng, one)
        made.preemptor, made.root = [one], Group("lone", 1, pods=[one.build()])
        return
    if "tree" in kind:
        made.preemptor = [composite("high").gang(minimum := rng.randint(1, 2)).priority(HIGH)]
        key = rng.choice(["", "", "zone"])
        if key:
            made.preemptor[0].topology(key)
        made.root = Group("high", minimum, key)
        leaves = [_gang(rng, f"high-{i}", rng.randint(1, 2), kind, member, "high") for i in range(2)]
        made.root.children = [leaf for leaf, _ in leaves]
        made.preemptor += [each for _, objects in leaves for each in objects]
    else:
        made.root, made.preemptor = _gang(rng, "high", rng.randint(2, 3), kind, member)
    made.tied = "tied" in kind


def _gang(
    rng: random.Random, name: str, size: int, kind: str, member: Any, parent: str = ""
) -> tuple[Group, list[Any]]:
    least = size if rng.random() < 0.7 else rng.randint(1, size)
    group = pod_group(name).gang(least).priority(HIGH)
    key = "rack" if kind == "rack gang" or ("tree" in kind and rng.random() < 0.4) else ""
    if key:
        group.topology(key)
    if parent:
        group.parent(parent)
    cpu = rng.randint(1, 3)
    pods = [member(f"{name}-{i}", cpu if kind == "gang" else rng.randint(1, 3), name) for i in range(size)]
    if "tied" in kind:
        tie = rng.choice(("spread", "apart", "company", "leader", "spread hosts"))
        for i, one in enumerate(pods):
            _tie(one, tie, i)
    if kind == "hindered gang":
        odd = random.Random(rng.random())
        state = odd.getstate()
        for one in pods:
            odd.setstate(state)
            _rule(odd, one)
    return Group(name, least, key, [one.build() for one in pods]), [group, *pods]


def _tie(one: Any, tie: str, number: int) -> None:
    if tie == "spread":
        one.spread("zone", {"app": "new"})
    elif tie == "spread hosts":
        one.spread("kubernetes.io/hostname", {"app": "new"})
    elif tie == "apart":
        one.anti_affinity("zone", {"app": "new"})
    elif tie == "company":
        one.affinity("zone", {"app": "new"})
    elif number:
        one.affinity("zone", {"role": "leader"})
    else:
        one.label("role", "leader").anti_affinity("zone", {"app": "old"})


def _rule(rng: random.Random, one: Any) -> None:
    rule = rng.choice(("port", "port", "apart", "near", "zone"))
    if rule == "port":
        one.port(rng.choice((80, 81)))
    elif rule == "apart":
        one.anti_affinity("kubernetes.io/hostname", {"app": "old"})
    elif rule == "near":
        one.affinity("zone", {"app": "web"})
    else:
        one.anti_affinity("zone", {"app": "old"})


# ---- what it costs


def cost(made: Crowd, gone: Sequence[str]) -> Key:
    """Of evicting these units, most important part first."""
    evicted = [v for v in made.victims if v.unit in set(gone)]
    over = 0
    for team, allowed in made.budgets.items():
        over += max(0, sum(v.labels.get("team") == team for v in evicted) - allowed)
    broken = stranded = 0
    for leaf, minimum in made.gangs.items():
        running = sum(v.leaf == leaf for v in made.victims)
        left = running - sum(v.leaf == leaf for v in evicted)
        if left < running and running >= minimum and 0 < left < minimum:
            broken += 1
            stranded += left
    hit = {v.unit if v.unit != v.name else v.leaf for v in evicted if v.unit != v.name or v.leaf in made.gangs}
    work = sum(NOW - v.started for v in evicted)
    highest = max((v.priority for v in evicted), default=-(2.0**63))
    return in_order((over, highest, len(evicted) + stranded, len(evicted), broken, len(hit), work))


def in_order(parts: Sequence[float]) -> Key:
    """These `PARTS` as the engine is asked to compare them."""
    return tuple(parts[PARTS.index(name)] for name in order.ORDER if name in PARTS)


def cheapest(made: Crowd, *, local: bool = False) -> Key | None:
    """`local`: only pods on the preemptor's node may go, as with single pods."""
    units = sorted({v.unit for v in made.victims})
    sets = [s for size in range(len(units) + 1) for s in combinations(units, size)]
    reckoned = sorted((cost(made, some), some) for some in sets)
    for price, some in reckoned:
        if fits(made, some, local=local):
            return price
    return None


def fits(made: Crowd, gone: Sequence[str], *, local: bool = False) -> bool:
    out = {v.name: v.unit for v in made.victims if v.unit in set(gone)}
    pods = [one for one in made.pods if one.metadata.name not in out]
    nodes = made.nodes
    if local:
        homes: dict[str, set[str]] = {unit: set() for unit in gone}
        for one in made.pods:
            if one.metadata.name in out:
                homes[out[one.metadata.name]].add(one.spec.node_name)
        nodes = [n for n in nodes if all(n.metadata.name in home for home in homes.values())]
    cluster = reference.Cluster(nodes=made.nodes, pods=pods)
    return any(_seated(cluster, nodes, cast, {}, made.tied) for cast in _casts(made.root))


def _casts(group: Group) -> Iterator[list[tuple[Pod, tuple[Group, ...]]]]:
    """Who sits when just the minimum is met: pods with the groups above them."""
    if group.pods:
        for some in combinations(group.pods, group.minimum):
            yield [(one, (group,)) for one in some]
        return
    for children in combinations(group.children, group.minimum):
        found: list[list[tuple[Pod, tuple[Group, ...]]]] = [[]]
        for child in children:
            found = [a + b for a in found for b in _casts(child)]
        for each in found:
            yield [(one, (group, *above)) for one, above in each]


def _seated(
    cluster: reference.Cluster, nodes: list[Node], cast: list[Any], domains: dict[str, str], tied: bool
) -> bool:
    """Whether these can arrive one after the other: in any order where that matters, else as they come."""
    if not cast:
        return True
    for number, (one, above) in enumerate(cast if tied else cast[:1]):
        rest = cast[:number] + cast[number + 1 :]
        for where in nodes:
            chosen, labels = dict(domains), where.metadata.labels
            if any(g.key and chosen.setdefault(g.name, labels[g.key]) != labels[g.key] for g in above):
                continue
            if any(plugin.filter(one, where, cluster) is not None for plugin in PLUGINS):
                continue
            spec = msgspec.structs.replace(one.spec, node_name=where.metadata.name)
            cluster.pods.append(msgspec.structs.replace(one, spec=spec))
            good = _seated(cluster, nodes, rest, chosen, tied)
            cluster.pods.pop()
            if good:
                return True
    return False
