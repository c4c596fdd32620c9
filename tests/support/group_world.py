"""A cluster with groups in which everything happens by chance, from a seed: objects come and go, binds fail, answers
are late, doubled or lost, the scheduler restarts. The `check` methods hold what must be true."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.events import (
    CHANGED_BY_KIND,
    CONFLICT,
    NOT_FOUND,
    PERMANENT,
    TRANSIENT,
    Event,
    Gone,
    NodeChanged,
    Outcome,
    PodChanged,
)
from phalanx.engine.framework.settings import EngineSettings
from phalanx.engine.groups.build import Unplaceable, build
from phalanx.engine.groups.conditions import TYPE_OF
from phalanx.engine.placement import place
from phalanx.engine.scheduling.commit.group_units import GroupUnits
from phalanx.engine.scheduling.queue.units import QueueName
from phalanx.model.groups import GROUP_LABEL, GroupKey, PodKey
from phalanx.model.groups.group import ON_NODE
from phalanx.model.objects import CompositePodGroup, Node, Pod, PodGroup
from phalanx.testing.builders import composite, node, pod, pod_group

RACK, BLOCK = "rack", "block"
NS = "default"


def rank(name: str) -> int:
    """Priority of a group by its number."""
    return 10 if int(name[1:]) % 3 == 0 else 0


class GroupWorld:
    """What the API server knows. Its news reaches the engine late and doubled, in order per object."""

    def __init__(self, seed: int, *, faults: float = 0.1, settings: EngineSettings | None = None) -> None:
        self.rng = random.Random(seed)
        self.ranks = bool(seed % 2)  # odd seeds: some groups may preempt others
        self.faults = faults
        self.settings = settings
        self.now = 1e9
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.groups: dict[tuple[str, str], PodGroup | CompositePodGroup] = {}
        self.updates: list[Event] = []
        self.made = self.binds = self.released = self.restarts = 0
        self.decisions: list[d.Decision] = []
        self.late: list[d.Decision] = []  # binds the executor has not performed yet
        self.engine = Engine(self.settings)

    # ---- life

    def tick(self) -> None:
        rng = self.rng
        dice = rng.random()
        if dice < 0.08:
            self.put_node()
        elif dice < 0.10 and self.nodes:
            name = rng.choice(sorted(self.nodes))
            del self.nodes[name]
            self.updates.append(Gone("Node", name))
        elif dice < 0.20 and len(self.groups) < 12:
            self.put_group()
        elif dice < 0.23 and self.groups:
            kind, name = rng.choice(sorted(self.groups))
            del self.groups[kind, name]
            self.updates.append(Gone(kind, name, NS))
        elif dice < 0.26 and self.groups:
            self.change_group(rng.choice(sorted(self.groups)))
        elif dice < 0.55 and len(self.pods) < 60:
            self.put_pods()
        elif dice < 0.66 and self.pods:
            self.delete_pod(rng.choice(sorted(self.pods)))
        elif dice < 0.69 and self.pods:
            self.finish_pod(rng.choice(sorted(self.pods)))
        elif dice < 0.74 and self.pods:
            self.change_pod(rng.choice(sorted(self.pods)))
        elif dice < 0.745 and self.pods and self.nodes:
            self.bind(rng.choice(sorted(self.pods)), rng.choice(sorted(self.nodes)), {})  # another scheduler
        elif dice < 0.75:
            self.restart()
        self.deliver()
        self.step()
        if rng.random() < 0.1:
            self.check_waiting_classes()

    def put_node(self) -> None:
        rng = self.rng
        i = rng.randrange(8)
        built = node(f"n{i}").cpu(rng.choice(["1", "2", "4"])).pods(rng.randrange(2, 8))
        if rng.random() < 0.9:
            built.label(RACK, f"r{i // 2}").label(BLOCK, f"b{i // 4}")
        self.nodes[f"n{i}"] = made = built.build()
        self.updates.append(NodeChanged(made))

    def put_group(self) -> None:
        rng = self.rng
        if rng.random() < 0.3:
            name = f"c{rng.randrange(3)}"
            if ("CompositePodGroup", name) not in self.groups:
                self.show_group(self.random_composite(name))
            return
        name = f"g{rng.randrange(8)}"
        if ("PodGroup", name) not in self.groups:
            self.show_group(self.random_leaf(name))

    def random_leaf(self, name: str) -> PodGroup:
        rng = self.rng
        self.made += 1
        built = pod_group(name).uid(f"group{self.made}")
        if rng.random() < 0.8:
            built.gang(rng.randrange(1, 5))
        if rng.random() < 0.4:
            built.topology(rng.choice([RACK, BLOCK]))
        if rng.random() < 0.5:
            built.parent(f"c{rng.randrange(3)}")
        if self.ranks and rng.random() < 0.9:
            built.priority(rank(name))
        if rng.random() < 0.2:
            built.disrupt_all()
        return built.build()

    def random_composite(self, name: str) -> CompositePodGroup:
        rng = self.rng
        self.made += 1
        built = composite(name).uid(f"group{self.made}")
        if rng.random() < 0.7:
            built.gang(rng.randrange(1, 4))
        if rng.random() < 0.4:
            built.topology(BLOCK)
        if rng.random() < 0.2:
            built.parent(f"c{rng.randrange(3)}")  # also itself, also in circles
        if self.ranks:
            built.priority(rank(name))
        return built.build()

    def show_group(self, group: PodGroup | CompositePodGroup) -> None:
        kind = type(group).__name__
        self.groups[kind, group.metadata.name] = group
        self.updates.append(CHANGED_BY_KIND[kind](group))

    def change_group(self, key: tuple[str, str]) -> None:
        """minCount, and now and then more than the API would allow: the engine has to stand it."""
        old = self.groups[key]
        new = self.random_leaf(key[1]) if key[0] == "PodGroup" else self.random_composite(key[1])
        spec: Any = new.spec
        if self.rng.random() < 0.7:
            spec = msgspec.structs.replace(old.spec, scheduling_policy=new.spec.scheduling_policy)
        self.show_group(msgspec.structs.replace(old, spec=spec))

    def put_pods(self) -> None:
        rng = self.rng
        group = f"g{rng.randrange(8)}"
        for _ in range(rng.choice([1, 1, 2, 4])):
            name = f"p{rng.randrange(80)}"
            if name in self.pods:
                continue
            self.made += 1
            built = pod(name).uid(f"pod{self.made}").cpu(rng.choice(["500m", "1", "1500m"]))
            dice = rng.random()
            if dice < 0.6:
                built.group(group)
            elif dice < 0.85:
                built.label(GROUP_LABEL, group)
            if self.ranks:
                built.priority(rank(group))
            if rng.random() < 0.05:
                built.gate("g")
            if rng.random() < 0.1:
                built.port(80)
            if rng.random() < 0.1:
                built.label("app", "a").anti_affinity(RACK, {"app": "a"})
            if rng.random() < 0.05:
                built.scheduler("somebody-else")
            self.show_pod(built.build())

    def show_pod(self, made: Pod) -> None:
        self.pods[made.metadata.name] = made
        self.updates.append(PodChanged(made))

    def delete_pod(self, name: str) -> None:
        found = self.pods[name]
        if found.metadata.deletion_timestamp is None and self.rng.random() < 0.4:
            meta = msgspec.structs.replace(found.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
            self.show_pod(msgspec.structs.replace(found, metadata=meta))
            return
        del self.pods[name]
        self.updates.append(Gone("Pod", name, NS, found.metadata.uid))

    def finish_pod(self, name: str) -> None:
        found = self.pods[name]
        if found.spec.node_name:
            phase = self.rng.choice(["Succeeded", "Failed", "Running", "Running"])
            start = "2026-01-01T00:00:00Z"
            status = msgspec.structs.replace(found.status, phase=phase, start_time=start)
            self.show_pod(msgspec.structs.replace(found, status=status))

    def change_pod(self, name: str) -> None:
        """Gates go; the label that names the group changes."""
        found = self.pods[name]
        spec = msgspec.structs.replace(found.spec, scheduling_gates=None)
        labels = {k: v for k, v in found.metadata.labels.items() if k != GROUP_LABEL}
        if self.rng.random() < 0.5 and not found.spec.node_name:
            labels[GROUP_LABEL] = f"g{self.rng.randrange(8)}"
        elif GROUP_LABEL in found.metadata.labels:
            labels[GROUP_LABEL] = found.metadata.labels[GROUP_LABEL]
        meta = msgspec.structs.replace(found.metadata, labels=labels)
        self.show_pod(msgspec.structs.replace(found, metadata=meta, spec=spec))

    # ---- engine and executor

    def restart(self) -> None:
        """A new process sees only what is in the API server, in any order. Writes of the old one may still land."""
        self.restarts += 1
        self.engine = Engine(self.settings)
        self.updates = []
        objects: list[Event] = [NodeChanged(n) for n in self.nodes.values()]
        objects += [PodChanged(p) for p in self.pods.values()]
        objects += [CHANGED_BY_KIND[kind](g) for (kind, _), g in self.groups.items()]
        self.rng.shuffle(objects)
        for event in objects:
            self.engine.apply(event)
        late, self.late = self.late, []
        for bind in late:
            if self.rng.random() < 0.5:
                self.perform(bind, lost=True)

    def bind(self, name: str, node_name: str, annotations: dict[str, str]) -> bool:
        found = self.pods[name]
        if found.spec.node_name or found.metadata.deletion_timestamp is not None or found.spec.scheduling_gates:
            return False
        meta = msgspec.structs.replace(found.metadata, annotations={**found.metadata.annotations, **annotations})
        self.show_pod(
            msgspec.structs.replace(found, metadata=meta, spec=msgspec.structs.replace(found.spec, node_name=node_name))
        )
        return True

    def deliver(self) -> None:
        while self.updates and self.rng.random() < 0.8:
            event = self.updates.pop(0)
            self.engine.apply(event)
            if self.rng.random() < 0.1:
                self.engine.apply(event)
        self.now += self.rng.choice([0.0, 0.1, 1.0, 5.0])

    def step(self) -> None:
        made = self.engine.step(self.now, self.rng.randrange(1, 6))
        self.decisions += made
        self.check_binds(made)
        for decision in made:
            if isinstance(decision, d.Bind):
                self.late.append(decision)
            elif isinstance(decision, d.Evict):
                self.evict(decision)
            elif isinstance(decision, d.SetGroupCondition):
                self.condition(decision)
            else:
                self.updates.append(Outcome(decision.id))
        while self.late and self.rng.random() < 0.85:
            self.perform(self.late.pop(self.rng.randrange(len(self.late))))
        self.engine.validate()

    def perform(self, decision: d.Decision, *, lost: bool = False) -> None:
        assert isinstance(decision, d.Bind)
        found = self.pods.get(decision.name)
        problem = ""
        if found is None or found.metadata.uid != decision.uid:
            problem = NOT_FOUND
        elif self.rng.random() < self.faults:
            problem = self.rng.choice([TRANSIENT, PERMANENT])
        elif not self.bind(decision.name, decision.node, decision.annotations):
            problem = CONFLICT
        else:
            self.binds += 1
            lost = lost or self.rng.random() < self.faults
        if not lost:
            self.updates.insert(self.rng.randrange(len(self.updates) + 1), Outcome(decision.id, problem, problem))

    def evict(self, decision: d.Evict) -> None:
        found = self.pods.get(decision.name)
        if self.rng.random() < self.faults:
            self.updates.append(Outcome(decision.id, TRANSIENT))
            return
        if found is not None and found.metadata.uid == decision.uid:
            self.released += 1
            self.delete_pod(decision.name)
        self.updates.append(Outcome(decision.id))

    def condition(self, decision: d.SetGroupCondition) -> None:
        found = self.groups.get((decision.kind, decision.name))
        if found is None or found.metadata.uid != decision.uid:
            self.updates.append(Outcome(decision.id, NOT_FOUND))
            return
        conditions = {c.type: msgspec.to_builtins(c) for c in found.status.conditions or ()}
        before = conditions.get(decision.type)
        if decision.type in TYPE_OF.values():  # a DisruptionTarget is taken back when the group runs again
            assert before is None or before["status"] != "True" or decision.status == "True", (
                f"{decision.kind} {decision.name}: {decision.type} went from True to {decision.status}"
            )
        conditions[decision.type] = {"type": decision.type, "status": decision.status, "reason": decision.reason,
                                     "message": decision.message}  # fmt: skip
        status = msgspec.convert({"conditions": list(conditions.values())}, type(found.status))
        self.show_group(msgspec.structs.replace(found, status=status))
        self.updates.append(Outcome(decision.id))

    def settle(self) -> None:
        """Deliver everything, forgive everything, and let the engine finish."""
        self.faults = 0.0
        quiet = 0
        for _ in range(400):
            while self.updates:
                self.engine.apply(self.updates.pop(0))
            self.now += 11.0
            before = len(self.decisions)
            self.step()
            while self.engine.searches.unfinished:  # a root tried again for ever, slice by slice, is at rest too
                self.step()
            while self.late:
                self.perform(self.late.pop(0))
            for name in [n for n, p in self.pods.items() if p.metadata.deletion_timestamp is not None]:
                self.delete_pod(name)
            rest = len(self.decisions) == before and not self.updates and not self.engine.queue.has_active()
            quiet = quiet + 1 if rest else 0
            if quiet > 2:
                return
        raise AssertionError("the engine never comes to rest")

    # ---- what must hold

    def forest(self) -> Any:
        assert isinstance(self.engine.groups, GroupUnits)
        return self.engine.groups.forest

    def check_binds(self, made: list[d.Decision]) -> None:
        """A bound pod is bound with a whole gang, all the way up, and in one domain."""
        forest, columns = self.forest(), self.engine.columns
        seen: set[GroupKey] = set()
        for decision in made:
            if not isinstance(decision, d.Bind):
                continue
            leaf = forest.leaf_of(PodKey(decision.namespace, decision.name))
            while leaf is not None and leaf not in seen:
                seen.add(leaf)
                group = forest.group(leaf)
                assert group is not None and group.satisfied, f"{decision.name} is bound, but {leaf} is not complete"
                key = group.spec.topology_key
                if key is not None:
                    members = [m for part in forest.leaves(leaf) for m in part.members.values() if m.state in ON_NODE]
                    rows = [columns.row_of[m.node] for m in members if m.node in columns.row_of]
                    domains = {int(columns.label(key).ids[row]) for row in rows}
                    assert len(domains) == 1 and 0 not in domains, f"{leaf} is spread over {domains} of {key}"
                leaf = group.spec.parent

    def check_rest(self) -> None:
        """Nothing is half done, nothing that fits sleeps, nothing is lost."""
        engine = self.engine
        known = {record.name: record.node_name for record in engine.pods.records.values()}
        ours = {
            name: p.spec.node_name
            for name, p in self.pods.items()
            if p.status.phase not in ("Succeeded", "Failed")
            and (p.spec.node_name or p.spec.scheduler_name == "default-scheduler")
        }
        assert known == ours
        assert not engine.queue.has_active()
        self.check_nothing_half_done()
        self.check_waiting_classes()

    def check_nothing_half_done(self) -> None:
        groups, forest = self.engine.groups, self.forest()
        assert isinstance(groups, GroupUnits)
        for head in forest.roots():
            group = forest.group(head)
            assert group is not None
            if forest.invalid(head) is not None:
                continue
            for part in groups.commits._failed_commits(group):
                raise AssertionError(f"{part.key} was left half-placed")
            if groups.commits.confirmed(group) and any(leaf.marked for leaf in forest.leaves(head)):
                assert groups.conditions.is_true(head), f"{head} is scheduled, but its condition does not say so"

    def check_waiting_classes(self) -> None:
        groups = self.engine.groups
        assert isinstance(groups, GroupUnits)
        for root, place_ in self.engine.queue.places():
            if root.kind == "Pod" or place_ is not QueueName.WAITING or groups.busy:
                continue
            if root.equivalence_class is None or not root.equivalence_class.is_waiting:
                continue  # an equivalent pod is being tried
            if self.engine.unit_lifecycle.is_valid(root.plan):
                continue  # it waits for the last of those who make room
            group = groups.members.group_of(root)
            assert group is not None
            try:
                built = build(self.engine.cluster, group, groups.waiting_pods, 5000, root.priority)
            except Unplaceable:
                continue  # its members were torn apart while it slept
            outcome = place(built.problem)
            if not built.coupled:
                assert not outcome.shares, f"{root} fits but sleeps"
