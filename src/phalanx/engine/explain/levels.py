"""Describe the tree of a scheduling unit, level by level: quorum, placed members, domains and conditions."""

from __future__ import annotations

import re
from collections.abc import Mapping

from phalanx.engine.explain.values import Level, PodLine
from phalanx.engine.groups.group_state import revision_of, settings_in_words
from phalanx.engine.scheduling.commit.group_units import GroupUnits
from phalanx.engine.state.records import PodRecord
from phalanx.model.groups import ON_NODE, Group, GroupKey, MemberState

MOST_PODS = 200  # maximum number listed by name; counts are always complete


def levels_of(groups: GroupUnits, head: GroupKey) -> list[Level]:
    """Return the levels, parents first, siblings by age."""
    found = []
    depth: dict[GroupKey, int] = {}
    for group in groups.forest.tree(head):
        spec = group.spec
        above = spec.parent if spec is not None and spec.parent in depth else None
        depth[group.key] = depth[above] + 1 if above is not None else 0
        found.append(_level(groups, group, depth[group.key]))
    return found


def placed_enough(groups: GroupUnits, group: Group) -> bool:
    """Return True if the placed members meet the group's minimum. Composites in a cycle never do, because there is no
    level at which to start counting."""
    return not (group.composite and groups.forest.resolve(group.key).cycle) and group.satisfied


def _level(groups: GroupUnits, group: Group, depth: int) -> Level:
    spec = group.spec
    if spec is None:
        return Level(group.key.kind, group.key.name, depth, policy="unknown", message="its object has not been seen")
    condition = groups.conditions.last_written(group.key)
    leaves = list(groups.forest.leaves(group.key))
    return Level(
        kind=group.key.kind,
        name=group.key.name,
        depth=depth,
        parent=spec.parent.name if spec.parent is not None else "",
        policy="gang" if spec.gang else "basic",
        minimum=spec.minimum,
        known=group.ready_children if group.composite else group.known,
        placed=sum(placed_enough(groups, g) for g in group.children.values()) if group.composite else group.placed,
        pending=sum(leaf.counts[MemberState.PENDING] for leaf in leaves),
        gated=sum(len(leaf.gated) for leaf in leaves),
        ready=group.ready,
        satisfied=placed_enough(groups, group),
        topology=spec.topology_key or "",
        domains=_domains(groups, leaves, spec.topology_key),
        disruption="all" if spec.disrupt_all else "single",
        state=str(groups.members.health.state(group)),
        lost=groups.members.health.lost(group),
        revision=revision_of(group),
        settings=settings_in_words(group),
        status=condition.status,
        reason=condition.reason,
        message=condition.message,
    )


def _domains(groups: GroupUnits, leaves: list[Group], key: str | None) -> list[str]:
    if key is None:
        return []
    columns = groups.cluster.columns
    found: dict[str, None] = {}
    for leaf in leaves:
        for member in leaf.members.values():
            row = columns.row_of.get(member.node, -1) if member.state in ON_NODE else -1
            node = columns.nodes[row] if row >= 0 else None
            if node is not None and key in node.metadata.labels:
                found[node.metadata.labels[key]] = None
    return sorted(found)


def pods_of(groups: GroupUnits, key: GroupKey, records: Mapping[str, PodRecord]) -> list[PodLine]:
    """Return the members below a group: pending ones first, then by name with numbers in their order (2 before 10).

    They are the first MOST_PODS of them.
    """
    found = []
    for leaf in groups.forest.leaves(key):
        of_group = groups.conditions.last_written(leaf.key).message
        for name, member in leaf.members.items():
            record = records.get(str(name))
            message = record.last_message if record is not None and not record.node_name else ""
            if message == of_group:
                message = ""  # omit what the group's message already says
            if member.state is MemberState.FOREIGN:
                message = f"for the scheduler {member.pod.spec.scheduler_name} (spec.schedulerName), not for this one"
            nominated = record.nominated if record is not None else ""
            found.append(PodLine(name.name, member.state.name.lower(), member.node, nominated, message))
    found.sort(key=lambda line: (line.state != "pending", _with_numbers(line.name)))
    return found[:MOST_PODS]


def _with_numbers(name: str) -> list[tuple[int, str]]:
    """Return a sort key that compares digits as numbers."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
