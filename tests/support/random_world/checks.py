"""What must be true in a random world: after every step, and at rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.framework.choice import choose
from phalanx.engine.groups.build import Unplaceable, build
from phalanx.engine.placement import place
from phalanx.engine.scheduling.commit.group_units import GroupUnits
from phalanx.engine.scheduling.queue.units import QueueName
from phalanx.model.groups import GroupKey, PodKey
from phalanx.model.groups.group import ON_NODE
from phalanx.model.objects import Pod


def check_binds(engine: Engine, made: list[d.Decision]) -> None:
    """A bound pod is bound with a whole gang, all the way up, and in one domain."""
    forest, columns = _groups(engine).forest, engine.columns
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


def check_rest(engine: Engine, pods: Mapping[str, Pod]) -> None:
    """Nothing is half done, nothing that fits sleeps, nothing is lost."""
    known = {record.name: record.node_name for record in engine.pods.records.values()}
    ours = {
        name: p.spec.node_name
        for name, p in pods.items()
        if p.status.phase not in ("Succeeded", "Failed")
        and (p.spec.node_name or p.spec.scheduler_name == "default-scheduler")
    }
    assert known == ours
    assert not engine.queue.has_active()
    check_nominations(engine)
    check_nothing_half_done(engine)
    check_waiting_pods(engine)
    check_waiting_classes(engine)


def check_nominations(engine: Engine) -> None:
    """Room is kept only for pods that wait for it."""
    for node_name, waiting in engine.nominations.all():
        if waiting.key.count("/") > 1:
            continue  # a placeholder: room reserved for an expected pod or a promised start, which validate() checks
        assert engine.pods.records.get(waiting.key) is waiting and waiting.row < 0, f"no pod waits for {node_name}"


def check_nothing_half_done(engine: Engine) -> None:
    groups = _groups(engine)
    for head in groups.forest.roots():
        group = groups.forest.group(head)
        assert group is not None
        if groups.forest.invalid(head) is not None:
            continue
        for part in groups.commits._failed_commits(group):
            raise AssertionError(f"{part.key} was left half-placed")
        if groups.commits.confirmed(group) and any(leaf.marked for leaf in groups.forest.leaves(head)):
            assert groups.conditions.is_true(head), f"{head} is scheduled, but its condition does not say so"


def check_waiting_pods(engine: Engine) -> None:
    """No pod sleeps that fits beside what is reserved for others."""
    for root, _ in engine.queue.places():
        if root.kind != "Pod" or root.equivalence_class is None:
            continue
        evaluation = engine.cluster.evaluation(root.record)
        fits = choose(engine.cluster, root.record, evaluation, []) >= 0
        assert not fits or evaluation.pre_filter() is not None, f"{root} fits but sleeps"


def check_waiting_classes(engine: Engine) -> None:
    """No group sleeps that fits."""
    groups = _groups(engine)
    for root, place_ in engine.queue.places():
        if root.kind == "Pod" or place_ is not QueueName.WAITING or groups.busy:
            continue
        if root.equivalence_class is None or not root.equivalence_class.is_waiting:
            continue  # an equivalent pod is being tried
        if engine.unit_lifecycle.is_valid(root.plan):
            continue  # it waits for the last of those who make room
        group = groups.members.group_of(root)
        assert group is not None
        try:
            built = build(engine.cluster, group, groups.waiting_pods, 5000, root.priority)
        except Unplaceable:
            continue  # its members were torn apart while it slept
        outcome = place(built.problem)
        if not built.coupled:
            assert not outcome.shares, f"{root} fits but sleeps"


def _groups(engine: Engine) -> Any:
    assert isinstance(engine.groups, GroupUnits)
    return engine.groups
