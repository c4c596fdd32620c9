"""Answer which gangs a drain affects and where they would go, and how to repair a gang with the fewest moves.

Changes the engine permanently, so it must run in the forked process of a query (`serve.queries.fork`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from phalanx.base.errors import BadRequest, NotFound
from phalanx.base.well_known import NODE_LOST_TAINTS
from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.events import Gone, NodeChanged, Outcome, PodChanged
from phalanx.model.groups import Group, GroupKey, Member, MemberState
from phalanx.model.groups.policy import TERMINATE_ALL
from phalanx.model.objects import Node, Pod
from phalanx.serve.queries.moved_claims import with_claims_moved

NODE = "Node"
MOST_STEPS = 200  # engine steps per answer
ON_NODE = (MemberState.ASSUMED, MemberState.CONFIRMED, MemberState.RUNNING)


class _Value(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    pass


class Move(_Value, frozen=True):
    """The result for one group, or for all pods without a group."""

    group: str  # "podgroup/ns/name"; "": pods without a group
    moved: int  # pods that leave their nodes
    pods: int  # its pods on nodes
    placed: int  # moved pods that get a node
    together: bool = False  # it is evicted as a whole
    whole: bool = False  # the whole gang moves to another place
    nodes: list[str] = []  # new node of each moved pod
    evicts: list[str] = []  # pods evicted to make room
    message: str = ""  # what is missing


class DrainAnswer(_Value, frozen=True):
    nodes: list[str]
    moves: list[Move]

    @property
    def fits(self) -> bool:
        return all(move.placed == move.moved for move in self.moves)


def drain(engine: Engine, nodes: Sequence[str], domain: str = "") -> DrainAnswer:
    """Return the affected gangs and their new places. `domain`: KEY=VALUE of a node label.

    Raises BadRequest and NotFound.
    """
    names = [*nodes, *_in_domain(engine, domain)]
    if not names:
        raise BadRequest("name a node, or a domain as KEY=VALUE")
    for name in names:
        if name not in engine.columns.row_of:
            raise NotFound(f"there is no node {name[:253]!r}", name=name, kind=NODE)
    _cordon(engine, names)
    gone = set(names)
    moves = [(group, *_members_to_move(engine, group, gone)) for group in _affected_groups(engine, gone)]
    trial = _Trial(engine)
    for _, members, _ in moves:
        trial.recreate(members)
    single = [record.key for record in engine.pods.records.values() if record.node_name in gone and not record.group]
    trial.run()
    found = [trial.answer(group, members, together) for group, members, together in moves]
    if single:
        found.append(Move("", len(single), len(single), len(single)))
    return DrainAnswer(names, found)


def repair(engine: Engine, key: GroupKey) -> Move:
    """Return the repair of a gang with the fewest moved pods.

    First its members on failed or cordoned nodes, including terminating ones without a replacement; then all members of
    their pod groups; then the whole gang.
    """
    group = engine.cluster.forest.group(key)
    if group is None:
        raise NotFound(f"{key} was not found", name=key.name, kind=key.kind)
    leaves = engine.cluster.forest.leaves(key)
    members = [member for leaf in leaves for member in leaf.members.values() if member.state in ON_NODE]
    bad = [member for member in members if _unusable(engine, member.node)]
    bad += [member for leaf in leaves for member in _not_replaced(leaf)]
    hit = [leaf for leaf in leaves if any(member in bad for member in leaf.members.values())]
    of_hit_leaves = [member for leaf in hit for member in leaf.members.values() if member.state in ON_NODE]
    trial = _Trial(engine)
    waiting = {str(name) for leaf in leaves for name, m in leaf.members.items() if m.state is MemberState.PENDING}
    trial.watch(waiting)
    trial.recreate(bad)
    trial.run()
    first = trial.answer(group, bad, together=False, waiting=waiting)
    if not first.moved and (missing := sum(_short(leaf) for leaf in leaves)):
        pods = "1 pod" if missing == 1 else f"{missing} pods"
        return msgspec.structs.replace(first, message=f"waits for {pods} that its controller has not created yet")
    if first.placed == first.moved or len(bad) == len(members):
        return first
    # No room for the lost members alone: try their pod groups, then the whole gang.
    moved = list(bad)
    for wider in (of_hit_leaves, members):
        more = [member for member in wider if member not in moved]
        if not more:
            continue
        trial.recreate(more)
        trial.run()
        moved += more
        answer = trial.answer(group, moved, together=False, waiting=waiting)
        if answer.placed == answer.moved:
            return msgspec.structs.replace(answer, whole=len(moved) == len(members))
    return first


def _short(leaf: Group) -> int:
    """Return how many required pods of a gang neither run nor wait."""
    return max(0, leaf.spec.minimum - leaf.present) if leaf.spec is not None and leaf.spec.gang else 0


def _not_replaced(leaf: Group) -> list[Member]:
    """Return required terminating members without a replacement."""
    ending = (leaf.members[key] for key in sorted(leaf.members) if leaf.members[key].state is MemberState.ENDING)
    return list(islice(ending, _short(leaf)))


def _in_domain(engine: Engine, domain: str) -> list[str]:
    if not domain:
        return []
    key, equals, value = domain.partition("=")
    if not equals or not key or not value:
        raise BadRequest(f"{domain[:253]!r} is not KEY=VALUE, for example topology.kubernetes.io/zone=a")
    nodes = [node for node in engine.columns.nodes if node is not None]
    found = sorted(node.metadata.name for node in nodes if node.metadata.labels.get(key) == value)
    if not found:
        known = sorted({node.metadata.labels[key] for node in nodes if key in node.metadata.labels})
        values = f": the values are {', '.join(known[:5])}{', …' if len(known) > 5 else ''}" if known else ""
        raise NotFound(f"no node has the label {domain[:253] if known else key[:253]}{values}", kind=NODE)
    return found


def _cordon(engine: Engine, names: Iterable[str]) -> None:
    for name in names:
        node = engine.columns.nodes[engine.columns.row_of[name]]
        assert isinstance(node, Node)
        spec = msgspec.structs.replace(node.spec, unschedulable=True)
        engine.apply(NodeChanged(msgspec.structs.replace(node, spec=spec)))


def _unusable(engine: Engine, name: str) -> bool:
    row = engine.columns.row_of.get(name, -1)
    node = engine.columns.nodes[row] if row >= 0 else None
    if node is None or node.spec.unschedulable:
        return True
    return any(taint.key in NODE_LOST_TAINTS for taint in node.spec.taints or ())


def _affected_groups(engine: Engine, nodes: set[str]) -> list[Group]:
    """Return the groups with members on these nodes: the highest one that is evicted as a whole, else the leaf."""
    forest = engine.cluster.forest
    found: dict[GroupKey, Group] = {}
    for root in forest.roots():
        for leaf in forest.leaves(root):
            if any(member.node in nodes and member.state in ON_NODE for member in leaf.members.values()):
                unit = _unit(engine, leaf)
                found[unit.key] = unit
    return list(found.values())


def _unit(engine: Engine, leaf: Group) -> Group:
    unit = leaf
    for group in [leaf, *engine.cluster.forest.above(leaf.key)]:
        if _together(group):
            unit = group
    return unit


def _together(group: Group) -> bool:
    spec = group.spec
    return spec is not None and (spec.disrupt_all or (spec.gang and group.policy.rescheduling == TERMINATE_ALL))


def _members_to_move(engine: Engine, group: Group, nodes: set[str]) -> tuple[list[Member], bool]:
    leaves = engine.cluster.forest.leaves(group.key)
    members = [member for leaf in leaves for member in leaf.members.values() if member.state in ON_NODE]
    together = _together(group)
    return [member for member in members if together or member.node in nodes], together


class _Trial:
    """Removes pods from their nodes and creates them again, so that the engine places them."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._places: dict[str, str] = {}  # pod key -> node
        self._again: dict[str, str] = {}  # uid of a moved pod -> key of its replacement
        self._evicted: list[tuple[str, str]] = []  # (key of the preemptor's unit, pod)
        self._watched: set[str] = set()

    def watch(self, keys: set[str]) -> None:
        """Include these pending pods in the answer."""
        self._watched |= keys

    def recreate(self, members: Iterable[Member]) -> None:
        """Delete these pods and create equal ones without a node."""
        for member in members:
            pod = member.pod
            meta = pod.metadata
            self._engine.apply(Gone("Pod", meta.name, meta.namespace, meta.uid))
            name = f"{meta.name}-again"[-253:]
            annotations = {key: value for key, value in meta.annotations.items() if "bound-in-group" not in key}
            again = Pod(
                metadata=msgspec.structs.replace(
                    meta, name=name, uid=f"{meta.uid}-again", annotations=annotations, deletion_timestamp=None
                ),
                spec=msgspec.structs.replace(pod.spec, node_name=""),
            )
            again = with_claims_moved(self._engine, pod, again)
            self._again[meta.uid] = f"{meta.namespace}/{name}"
            self._engine.apply(PodChanged(again))

    def run(self) -> None:
        """Step the engine until it has nothing left to do; record binds, nominations and evictions."""
        engine = self._engine
        for _ in range(MOST_STEPS):
            made = engine.step(engine.cluster.now)
            for decision in made:
                key = f"{decision.namespace}/{decision.name}"
                if isinstance(decision, d.Bind):
                    self._places[key] = decision.node
                    engine.apply(Outcome(decision.id))
                elif isinstance(decision, d.ReserveClaim | d.CreateExtendedClaim | d.ReleaseClaim):
                    engine.apply(Outcome(decision.id))
                elif isinstance(decision, d.Nominate) and decision.node:
                    self._places[key] = decision.node
                elif isinstance(decision, d.Evict):
                    self._evicted.append((decision.preemptor, key))
            due = engine.next_wake()
            if not made and (due is None or due > engine.cluster.now):
                return

    def answer(self, group: Group, members: Sequence[Member], together: bool, waiting: Iterable[str] = ()) -> Move:
        forest = self._engine.cluster.forest
        keys = [self._again[member.pod.metadata.uid] for member in members] + sorted(waiting)
        nodes = [node for key in keys if (node := self._place(key))]
        root = forest.root_of(group.key) or group.key
        unit = f"{root.kind.lower()}/{root.namespace}/{root.name}"
        leaves = forest.leaves(group.key)
        pods = sum(leaf.known for leaf in leaves)
        missing = ""
        if len(nodes) < len(keys):
            missing = self._message(keys, root) or "no room"
        return Move(
            f"{group.key.kind.lower()}/{group.key.namespace}/{group.key.name}",
            len(keys),
            pods,
            len(nodes),
            together,
            nodes=nodes,
            evicts=[pod for preemptor, pod in self._evicted if preemptor == unit],
            message=missing,
        )

    def _place(self, key: str) -> str:
        """Return the node of a pod, also of one that would wait there for its devices to be prepared; "" if none."""
        record = self._engine.pods.records.get(key)
        row = record.row if record is not None else -1
        return self._places.get(key, "") or (self._engine.columns.names[row] if row >= 0 else "")

    def _message(self, keys: Iterable[str], root: GroupKey) -> str:
        """Return the message of the first pending pod that has one, else of the group."""
        for key in keys:
            record = self._engine.pods.records.get(key)
            if record is not None and not record.node_name and record.last_condition:
                return record.last_message
        return self._engine.groups.conditions.last_written(root).message
