"""Tiny clusters with gangs whose members are tied to each other (spreading, affinity, anti-affinity), made from a seed;
and a judge that knows only Kubernetes' rules: it replays binds one by one, and tries every order of every placement."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.events import CompositePodGroupChanged, NodeChanged, PodChanged, PodGroupChanged
from phalanx.testing.builders import PodBuilder, composite, node, pod, pod_group

ZONE, HOST = "zone", "kubernetes.io/hostname"


@dataclass(frozen=True)
class Rules:
    """A kind of pod. Selectors name one value of the label `app`."""

    app: str
    cpu: int
    near: tuple[tuple[str, str], ...] = ()  # (topology key, app)
    away: tuple[tuple[str, str], ...] = ()
    spread: tuple[tuple[str, str, int], ...] = ()  # (topology key, app, max skew)


@dataclass
class Gang:
    name: str
    minimum: int
    members: list[Rules]
    key: str | None = None


@dataclass
class Case:
    nodes: list[tuple[int, str]]  # (cpu, zone); "" has no zone
    running: list[tuple[Rules, int]]  # pods that are there already
    gangs: list[Gang]
    quorum: int = 0  # of a tree over the gangs; 0: there is one gang and no tree

    # ---- the rules

    def domain(self, key: str, at: int) -> str:
        return str(at) if key == HOST else self.nodes[at][1]

    def fits(self, rules: Rules, at: int, placed: Counter[tuple[Rules, int]]) -> bool:
        """Whether a pod may go to a node beside those that are placed."""
        all_pods = [(other, where, n) for (other, where), n in placed.items() if n]
        if rules.cpu + sum(o.cpu * n for o, where, n in all_pods if where == at) > self.nodes[at][0]:
            return False
        for key, app in rules.away:
            if self.domain(key, at) and any(
                o.app == app and self.domain(key, w) == self.domain(key, at) for o, w, _ in all_pods
            ):
                return False
        for other, where, _ in all_pods:
            for key, app in other.away:
                if app == rules.app and self.domain(key, at) and self.domain(key, where) == self.domain(key, at):
                    return False
        return self._near(rules, at, all_pods) and self._spread(rules, at, all_pods)

    def _near(self, rules: Rules, at: int, all_pods: list[tuple[Rules, int, int]]) -> bool:
        if not rules.near:
            return True
        if not all(self.domain(key, at) for key, _ in rules.near):
            return False
        company = [(o, w) for o, w, _ in all_pods if all(o.app == app for _, app in rules.near)]
        company = [(o, w) for o, w in company if any(self.domain(key, w) for key, _ in rules.near)]
        if not company:
            return all(rules.app == app for _, app in rules.near)  # the first of its kind
        return all(any(self.domain(key, w) == self.domain(key, at) for _, w in company) for key, _ in rules.near)

    def _spread(self, rules: Rules, at: int, all_pods: list[tuple[Rules, int, int]]) -> bool:
        keys = [key for key, _, _ in rules.spread]
        counted = [w for w in range(len(self.nodes)) if all(self.domain(key, w) for key in keys)]
        if rules.spread and at not in counted:
            return False
        for key, app, skew in rules.spread:
            counts = dict.fromkeys((self.domain(key, w) for w in counted), 0)
            for other, where, n in all_pods:
                if other.app == app and where in counted:
                    counts[self.domain(key, where)] += n
            if counts[self.domain(key, at)] + (rules.app == app) - min(counts.values()) > skew:
                return False
        return True

    # ---- what should be possible

    def feasible(self) -> bool:
        """Whether some order of some placement keeps every rule at every step and ends with the minimums met."""
        start: Counter[tuple[Rules, int]] = Counter(self.running)
        return any(self._seatable(chosen, start) for chosen in self._choices())

    def _choices(self) -> Iterator[list[Gang]]:
        if not self.quorum:
            yield self.gangs
            return
        for bits in range(1, 1 << len(self.gangs)):
            chosen = [gang for i, gang in enumerate(self.gangs) if bits >> i & 1]
            if len(chosen) >= self.quorum:
                yield chosen

    def _seatable(self, gangs: list[Gang], start: Counter[tuple[Rules, int]]) -> bool:
        seen: set[frozenset[tuple[tuple[int, Rules, int], int]]] = set()

        def go(slots_per_client: Counter[tuple[int, Rules, int]], placed: Counter[tuple[Rules, int]]) -> bool:
            state = frozenset(slots_per_client.items())
            if state in seen:
                return False
            seen.add(state)
            taken = [
                [(r, w) for (g, r, w), n in slots_per_client.items() for _ in range(n) if g == i]
                for i in range(len(gangs))
            ]
            if all(len(taken[i]) >= gang.minimum for i, gang in enumerate(gangs)):
                return True
            for i, gang in enumerate(gangs):
                left = Counter(gang.members)
                left.subtract(Counter(r for r, _ in taken[i]))
                homes = {self.domain(gang.key, w) for _, w in taken[i]} if gang.key else set()
                for rules, n in left.items():
                    for at in range(len(self.nodes)) if n > 0 else ():
                        if gang.key and (not self.domain(gang.key, at) or homes - {self.domain(gang.key, at)}):
                            continue
                        if self.fits(rules, at, placed):
                            more = Counter({(i, rules, at): 1})
                            if go(slots_per_client + more, placed + Counter({(rules, at): 1})):
                                return True
            return False

        return go(Counter(), start)

    # ---- what the engine does

    def binds(self, engine: Engine | None = None) -> list[tuple[str, Rules, int]]:
        """(gang, pod, node) in the order of the engine's binds, after every rule was checked for each of them."""
        engine = engine or Engine()
        for at, (cpu, zone) in enumerate(self.nodes):
            each = node(f"n{at}").cpu(cpu).label(HOST, f"n{at}")
            engine.apply(NodeChanged((each.label(ZONE, zone) if zone else each).build()))
        for number, (rules, at) in enumerate(self.running):
            engine.apply(PodChanged(self._pod(f"r{number}", rules).node(f"n{at}").build()))
        if self.quorum:
            engine.apply(CompositePodGroupChanged(composite("tree").gang(self.quorum).build()))
        pods: dict[str, tuple[str, Rules]] = {}
        for gang in self.gangs:
            group = pod_group(gang.name).gang(gang.minimum)
            if self.quorum:
                group.parent("tree")
            if gang.key:
                group.topology(gang.key)
            engine.apply(PodGroupChanged(group.build()))
            for number, rules in enumerate(gang.members):
                name = f"{gang.name}-{number}"
                pods[name] = gang.name, rules
                engine.apply(PodChanged(self._pod(name, rules).group(gang.name).build()))
        made: list[d.Bind] = []
        while True:
            out = engine.step(1.0, 10_000)
            engine.validate()
            made += [x for x in out if isinstance(x, d.Bind)]
            due = engine.next_wake()
            if not out and (due is None or due > 1.0):
                break
        return [(*pods[bind.name], int(bind.node[1:])) for bind in made]

    @staticmethod
    def _pod(name: str, rules: Rules) -> PodBuilder:
        built = pod(name).cpu(rules.cpu).label("app", rules.app)
        for key, app in rules.near:
            built.affinity(key, {"app": app})
        for key, app in rules.away:
            built.anti_affinity(key, {"app": app})
        for key, app, skew in rules.spread:
            built.spread(key, {"app": app}, max_skew=skew)
        return built

    def check(self, binds: list[tuple[str, Rules, int]]) -> None:
        """Every bind keeps every rule beside those before it; no pod is bound with half a gang, or half a tree."""
        placed: Counter[tuple[Rules, int]] = Counter(self.running)
        for name, rules, at in binds:
            assert self.fits(rules, at, placed), f"{name}: {rules} does not fit on node {at} beside {placed}"
            placed[rules, at] += 1
        whole = 0
        for gang in self.gangs:
            homes = [at for name, _, at in binds if name == gang.name]
            assert not homes or len(homes) >= gang.minimum, f"{gang.name} is bound in part"
            assert gang.key is None or len({self.domain(gang.key, at) for at in homes}) <= 1
            whole += bool(homes)
        assert not binds or whole >= self.quorum, "the tree is bound in part"


def case_of(seed: int) -> Case:
    rng = random.Random(seed)
    zones = ["a", "b", "c"][: rng.choice([2, 2, 3])]
    nodes = [(rng.choice([1, 2, 2, 3, 4]), rng.choice(zones)) for _ in range(rng.randint(3, 6))]
    if rng.random() < 0.1:
        nodes[-1] = (4, "")
    count = rng.choice([1, 1, 2])
    kinds = [_kind(rng, app) for app in ("x", "y", "z")[: rng.randint(1, 3)]]
    gangs = []
    for number in range(count):
        members = sorted((rng.choice(kinds) for _ in range(rng.randint(2, 6 if count == 1 else 3))), key=kinds.index)
        if rng.random() < 0.5:
            members.reverse()
        minimum = len(members) - (rng.random() < 0.2)
        gangs.append(Gang(f"g{number}", minimum, members, rng.choice([None] * 7 + [ZONE])))
    quorum = 0 if count == 1 else rng.choice([2, 2, 1])
    case = Case(nodes, [], gangs, quorum)
    for _ in range(rng.choice([0, 0, 1, 2])):
        resident = Rules(rng.choice(("x", "y", "z")), 1)
        at = rng.randrange(len(nodes))
        if case.fits(resident, at, Counter(case.running)):
            case.running.append((resident, at))
    return case


def _kind(rng: random.Random, app: str) -> Rules:
    apps = ("x", "y", "z")
    near, away, spread = [], [], []
    for _ in range(rng.choice([1, 1, 2])):
        key = rng.choice([ZONE, ZONE, HOST])
        other = rng.choice([app, app, *apps])
        what = rng.choice(["near", "away", "spread", "spread"])
        if what == "near":
            near.append((key, other))
        elif what == "away":
            away.append((key, other))
        else:
            spread.append((key, other, rng.choice([1, 1, 2])))
    return Rules(app, rng.choice([1, 1, 2]), tuple(near), tuple(away), tuple(spread))
