"""PodGroups of other schedulers become groups of the engine: golden translations, status, bad input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from phalanx.cli.options import DIALECT_NAMES
from phalanx.kube.dialects import DIALECTS, ForeignGroup, GroupProgress, Translation
from phalanx.kube.dialects.contract import InvalidGroup
from phalanx.kube.dialects.hypernodes import RESOURCE, HyperNode, HyperNodeSpec, labels
from phalanx.model.groups.keys import PREFERRED_TOPOLOGY
from phalanx.model.groups.policy import SCHEDULE_TIMEOUT
from phalanx.model.objects.groups import CompositePodGroup
from phalanx.model.objects.meta import ObjectMeta


def translated(dialect: str, spec: Any) -> Translation:
    return DIALECTS[dialect].translate(ForeignGroup(ObjectMeta(name="g", namespace="n", uid="u"), spec))


def drawn(translation: Translation) -> list[tuple[Any, ...]]:
    """Name, parent, minimum, required topology of every group; composites in brackets."""
    lines: list[tuple[Any, ...]] = []
    for group in translation.groups:
        spec = group.spec
        topology = spec.scheduling_constraints.topology if spec.scheduling_constraints else None
        key = topology[0].key if topology else ""
        if isinstance(group, CompositePodGroup):
            together = group.spec.scheduling_policy.gang
            name, minimum = f"[{group.metadata.name}]", together.min_group_count if together is not None else 0
        else:
            gang = group.spec.scheduling_policy.gang
            name, minimum = group.metadata.name, gang.min_count if gang is not None else 0
        lines.append((name, spec.parent_composite_pod_group_name or "", minimum, key))
    return lines


def test_coscheduling_is_one_gang_with_its_time_limit() -> None:
    found = translated("coscheduling", {"minMember": 3, "scheduleTimeoutSeconds": 60, "minResources": {"cpu": "3"}})
    assert drawn(found) == [("g", "", 3, "")]
    assert found.groups[0].metadata.annotations == {SCHEDULE_TIMEOUT: "60"}
    assert found.groups[0].spec.disruption_mode is not None and found.groups[0].spec.disruption_mode.all is not None


@pytest.mark.parametrize(
    ("dialect", "labels", "annotations", "expected"),
    [
        ("coscheduling", {"scheduling.x-k8s.io/pod-group": "g"}, {}, ("g", "")),
        ("coscheduling", {"pod-group.scheduling.sigs.k8s.io": "g"}, {}, ("g", "")),
        ("coscheduling", {"app": "g"}, {}, None),
        ("volcano", {}, {"scheduling.k8s.io/group-name": "g", "volcano.sh/task-spec": "ps"}, ("g", "ps")),
        ("volcano", {}, {"scheduling.volcano.sh/group-name": "g"}, ("g", "")),
        ("volcano", {"scheduling.k8s.io/group-name": "g"}, {}, None),
        ("kai", {"kai.scheduler/subgroup-name": "w"}, {"pod-group-name": "g"}, ("g", "w")),
        ("kai", {"pod-group-name": "g"}, {}, None),
    ],
)
def test_pods_name_their_group(
    dialect: str, labels: dict[str, str], annotations: dict[str, str], expected: tuple[str, str] | None
) -> None:
    assert DIALECTS[dialect].group_of(labels, annotations) == expected


def test_volcano_tasks_become_children_with_their_minimums() -> None:
    spec = {"minMember": 5, "minTaskMember": {"worker": 4, "master": 1}, "queue": "q"}
    found = translated("volcano", spec)
    assert drawn(found) == [
        ("[g]", "", 2, ""),
        ("g-master", "g", 1, ""),
        ("g-worker", "g", 4, ""),
        ("g-rest", "", 0, ""),
    ]
    assert found.leaves == {"": "g-rest", "master": "g-master", "worker": "g-worker"}
    assert found.minimum == 5 and found.ignored == []


def test_volcano_ignores_minimums_of_tasks_above_the_whole_as_volcano_does() -> None:
    assert drawn(translated("volcano", {"minMember": 2, "minTaskMember": {"worker": 4}})) == [("g", "", 2, "")]


def test_volcano_topology_is_a_node_label_of_the_tier() -> None:
    hard = {"minMember": 2, "networkTopology": {"mode": "hard", "highestTierAllowed": 1}}
    assert drawn(translated("volcano", hard)) == [("g", "", 2, "topology.volcano.sh/tier-1")]
    soft = translated("volcano", {"minMember": 2, "networkTopology": {"mode": "soft", "highestTierAllowed": 2}})
    assert drawn(soft) == [("g", "", 2, "")]
    assert soft.groups[0].metadata.annotations == {PREFERRED_TOPOLOGY: "topology.volcano.sh/tier-2"}


def test_volcano_names_a_tier_by_its_name_too() -> None:
    named = {"minMember": 2, "networkTopology": {"mode": "hard", "highestTierName": "rack"}}
    assert drawn(translated("volcano", named)) == [("g", "", 2, "topology.volcano.sh/tier-name-rack")]


def test_what_cannot_be_expressed_is_named() -> None:
    assert "without a tier" in translated("volcano", {"networkTopology": {"mode": "hard"}}).ignored[0]
    assert "subGroupPolicy" in translated("volcano", {"minMember": 1, "subGroupPolicy": [{}]}).ignored[0]
    assert "minMember above" in translated("volcano", {"minMember": 9, "minTaskMember": {"a": 1}}).ignored[0]
    assert "preemptibility" in translated("kai", {"minMember": 1, "preemptibility": "non-preemptible"}).ignored[0]


def test_kai_subgroups_become_a_tree() -> None:
    spec = {
        "minMember": 5,
        "topologyConstraint": {"topology": "t", "requiredTopologyLevel": "block"},
        "subGroups": [
            {"name": "leader", "minMember": 1},
            {"name": "workers"},
            {
                "name": "left",
                "parent": "workers",
                "minMember": 2,
                "topologyConstraint": {"requiredTopologyLevel": "rack", "preferredTopologyLevel": "host"},
            },
            {"name": "right", "parent": "workers", "minMember": 2},
        ],
    }
    found = translated("kai", spec)
    assert drawn(found) == [
        ("[g]", "", 2, "block"),
        ("g-leader", "g", 1, ""),
        ("[g-workers]", "g", 2, ""),
        ("g-left", "g-workers", 2, "rack"),
        ("g-right", "g-workers", 2, ""),
        ("g-rest", "", 0, ""),
    ]
    assert found.minimum == 5
    assert found.groups[3].metadata.annotations == {PREFERRED_TOPOLOGY: "host"}


def test_kai_starts_with_some_of_its_subgroups() -> None:
    """`minSubGroup` of KAI 0.17; a subgroup that needs no pods always counts there."""
    replicas = [{"name": f"r{number}", "minMember": 8 - number} for number in range(4)]
    found = translated("kai", {"minSubGroup": 3, "subGroups": replicas})
    assert drawn(found)[0] == ("[g]", "", 3, "") and found.minimum == 5 + 6 + 7
    elastic = [
        {"name": "decode", "minSubGroup": 2},
        {"name": "leader", "parent": "decode", "minMember": 1},
        {"name": "worker", "parent": "decode", "minMember": 4},
        {"name": "extra", "parent": "decode", "minMember": 0},
        {"name": "spare", "minSubGroup": 0},
        {"name": "pool", "parent": "spare", "minMember": 2},
    ]
    found = translated("kai", {"minMember": None, "subGroups": elastic})
    assert drawn(found) == [
        ("[g]", "", 1, ""),
        ("[g-decode]", "g", 1, ""),
        ("[g-spare]", "", 0, ""),
        ("g-leader", "g-decode", 1, ""),
        ("g-worker", "g-decode", 4, ""),
        ("g-extra", "", 0, ""),
        ("g-pool", "g-spare", 2, ""),
        ("g-rest", "", 0, ""),
    ]
    assert found.minimum == 1


@pytest.mark.parametrize("dialect", ["volcano", "kai"])
def test_a_priority_class_that_its_pods_lack_is_named(dialect: str) -> None:
    found = translated(dialect, {"minMember": 1, "priorityClassName": "high"})
    assert found.ignored_with({"high"}) == []
    assert "spec.priorityClassName high has no effect" in found.ignored_with({"high", ""})[0]
    parts = {"minTaskMember": {"a": 1}, "subGroups": [{"name": "a"}], "priorityClassName": "high"}
    assert "set it there" in translated(dialect, parts).ignored_with({""})[0]


@pytest.mark.parametrize(
    ("dialect", "spec", "message"),
    [
        ("coscheduling", None, "spec: must be an object"),
        ("coscheduling", {"minMember": "many"}, "spec.minMember: 'many' is no number"),
        ("volcano", {"minTaskMember": {"worker": "many"}}, "spec.minTaskMember.worker: 'many' is no number"),
        ("volcano", {"networkTopology": {"highestTierAllowed": -1}}, "spec.networkTopology.highestTierAllowed: '-1'"),
        ("kai", {"subGroups": [{"name": "a", "minMember": -1}]}, "spec.subGroups[a].minMember: '-1' is no number"),
        ("coscheduling", {"minMember": True}, "spec.minMember"),
        ("volcano", {"minMember": -1}, "spec.minMember"),
        ("volcano", {"minMember": 10**30}, "spec.minMember"),
        ("volcano", {"minMember": 1, "minTaskMember": ["a"]}, "spec.minTaskMember"),
        ("volcano", {"minMember": 1, "minTaskMember": {str(n): 1 for n in range(999)}}, "at most 256"),
        ("kai", {"minMember": 1, "subGroups": [{"minMember": 1}]}, "needs a name"),
        ("kai", {"minMember": 1, "subGroups": [{"name": "a"}, {"name": "a"}]}, "occurs twice"),
        ("kai", {"minMember": 1, "subGroups": [{"name": "a", "parent": "b"}]}, "b does not exist"),
        ("kai", {"subGroups": [{"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]}, "cycle"),
        ("kai", {"subGroups": [{"name": "c"}, {"name": "a", "parent": "b"}, {"name": "b", "parent": "a"}]}, "cycle"),
        ("kai", {"minSubGroup": 2}, "spec.minSubGroup: there are no subGroups"),
        ("kai", {"minSubGroup": "two", "subGroups": [{"name": "a"}]}, "spec.minSubGroup: 'two' is no number"),
        ("kai", {"minMember": 1, "topologyConstraint": {"requiredTopologyLevel": 3}}, "key of a node label"),
    ],
)
def test_nonsense_is_refused_with_the_field(dialect: str, spec: Any, message: str) -> None:
    with pytest.raises(InvalidGroup, match=message.replace("[", r"\[")):
        translated(dialect, spec)


@pytest.mark.parametrize(
    ("dialect", "progress", "phase"),
    [
        ("coscheduling", GroupProgress(3, pending=2), "Pending"),
        ("coscheduling", GroupProgress(3, pending=3), "PreScheduling"),
        ("coscheduling", GroupProgress(3, bound=3), "Scheduled"),
        ("coscheduling", GroupProgress(3, running=3), "Running"),
        ("coscheduling", GroupProgress(3, succeeded=3), "Finished"),
        ("coscheduling", GroupProgress(3, succeeded=1, failed=2), "Failed"),
        ("volcano", GroupProgress(3, pending=3), "Inqueue"),
        ("volcano", GroupProgress(3), "Pending"),
        ("volcano", GroupProgress(3, running=3), "Running"),
        ("volcano", GroupProgress(3, running=1, pending=2), "Unknown"),
        ("volcano", GroupProgress(3, succeeded=3), "Completed"),
        ("kai", GroupProgress(3, pending=3), "Pending"),
        ("kai", GroupProgress(3, running=3), "Running"),
        ("kai", GroupProgress(3, succeeded=3), "Succeeded"),
    ],
)
def test_status_has_the_phase_of_the_dialect(dialect: str, progress: GroupProgress, phase: str) -> None:
    assert DIALECTS[dialect].status(progress)["phase"] == phase


def test_why_a_group_waits_is_in_its_status() -> None:
    progress = GroupProgress(3, pending=3, reason="Unschedulable", message="no room", since="2026-01-01T00:00:00Z")
    (volcano,) = DIALECTS["volcano"].status(progress)["conditions"]
    assert (volcano["type"], volcano["status"], volcano["message"]) == ("Unschedulable", "True", "no room")
    (kai,) = DIALECTS["kai"].status(progress)["schedulingConditions"]
    assert (kai["type"], kai["message"]) == ("UnschedulableOnNodePool", "no room")


def hyper(name: str, tier: int, *members: Any) -> HyperNode:
    return HyperNode(ObjectMeta(name=name), HyperNodeSpec(tier, list(members)))


def test_hypernodes_label_nodes_by_tier() -> None:
    found = labels(
        {
            "leaf0": hyper("leaf0", 1, {"type": "Node", "selector": {"exactMatch": {"name": "n0"}}}),
            "leaf1": hyper("leaf1", 1, {"type": "Node", "selector": {"regexMatch": {"pattern": "^n[12]$"}}}),
            "spine": hyper("spine", 2, {"type": "HyperNode", "selector": {"regexMatch": {"pattern": "^leaf"}}}),
            "lone": hyper("lone", 1, {"type": "Node", "selector": {"labelMatch": {"matchLabels": {"a": "b"}}}}),
            "odd": hyper("odd", 1, 7, {"type": "Node"}, {"selector": {"regexMatch": {"pattern": "("}}}),
        },
        {"n0": {}, "n1": {}, "n2": {}, "n3": {"a": "b"}, "n4": {}},
    )
    one, two = "topology.volcano.sh/tier-1", "topology.volcano.sh/tier-2"
    assert found == {
        "n0": {one: "leaf0", two: "spine"},
        "n1": {one: "leaf1", two: "spine"},
        "n2": {one: "leaf1", two: "spine"},
        "n3": {one: "lone", two: "lone"},
        "n4": {},
    }


def test_a_tier_with_a_name_has_a_second_label() -> None:
    member = {"type": "Node", "selector": {"exactMatch": {"name": "n0"}}}
    named = HyperNode(ObjectMeta(name="leaf0"), HyperNodeSpec(1, [member], "rack"))
    found = labels({"leaf0": named}, {"n0": {}})["n0"]
    assert found == {"topology.volcano.sh/tier-1": "leaf0", "topology.volcano.sh/tier-name-rack": "leaf0"}


def test_the_role_and_the_option_name_every_dialect() -> None:
    text = (Path(__file__).parents[2] / "deploy" / "components" / "dialects" / "role.yaml").read_text()
    role = next(yaml.safe_load_all(text))
    rights = {
        (group, resource, verb)
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    followed = [dialect.resource for dialect in DIALECTS.values()] + [RESOURCE]
    written = {
        (dialect.resource.group, "/".join(filter(None, (dialect.resource.plural, path))), "patch")
        for dialect in DIALECTS.values()
        for path in dialect.status_paths
    }
    assert rights == written | {(r.group, r.plural, verb) for r in followed for verb in ("list", "watch")}
    assert sorted(DIALECT_NAMES) == sorted(DIALECTS)
