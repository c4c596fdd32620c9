"""For random clusters and pods the engine's masks, reasons and scores equal the reference's, plugin by plugin.

Every example is a sequence of changes (nodes, pods and objects come, change and go; trials are made and undone), and
after each the evaluation that followed the changes and one made from scratch are both compared with the reference.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.model.objects.pod import NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from phalanx.model.objects.pod import TopologySpreadConstraint as Constraint
from phalanx.testing import builders as b
from support.differential import Pods, World, change, place, renamed
from support.reference import PLUGINS, Plugin
from support.reference.interpod import InterPodAffinity
from support.reference.node_plugins import NodeAffinityPlugin, NodeResourcesBalancedAllocation, NodeResourcesFit
from support.reference.spread import PodTopologySpread
from support.reference.volumes import VolumeBinding
from support.strategies import (
    HOST,
    NAMES,
    ZONE,
    backdrop,
    calm_nodes,
    namespaces,
    nodes,
    owners,
    plain,
    relating,
    spreading,
    storage,
    storing,
)

thorough = settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def run(
    data: st.DataObject,
    pods: Pods,
    objects: st.SearchStrategy[Any] | None,
    world: World | None = None,
    made: st.SearchStrategy[Any] | None = None,
    before: st.SearchStrategy[list[Any]] | None = None,
) -> None:
    """`objects` come and go; `before` are there from the start; `made` are the nodes."""
    world = world or World()
    made = made if made is not None else nodes()
    for i in range(data.draw(st.integers(1, 5), label="nodes")):
        world.see(renamed(data.draw(made), NAMES[i]))
    before = before if before is not None else st.lists(objects, max_size=6) if objects is not None else st.just([])
    for thing in data.draw(before, label="objects"):
        world.see(thing)
    for i in range(data.draw(st.integers(0, 7), label="placed")):
        place(data, world, pods, f"p{i}")
    candidates = [data.draw(pods("x")).build(), data.draw(pods("y")).build()]
    candidates = [c for c in candidates if c.metadata.deletion_timestamp is None] or [b.pod("x").build()]
    for candidate in candidates:
        world.check(candidate)
        world.see(candidate)
    for _ in range(data.draw(st.integers(1, 6), label="changes")):
        change(data, world, pods, objects, made)
        world.check(data.draw(st.sampled_from(candidates)))
    keys = st.sampled_from(sorted(world.pods))
    moves = data.draw(st.lists(st.tuples(keys, st.integers(0, 4)), max_size=5), label="trial")
    world.trial(moves, candidates)


@thorough
@given(st.data())
def test_plugins_that_look_at_one_node(data: st.DataObject) -> None:
    run(data, plain, None)


@thorough
@given(st.data())
def test_topology_spreading(data: st.DataObject) -> None:
    run(data, spreading, owners(), made=calm_nodes())


@thorough
@given(st.data())
def test_pod_affinity_in_both_directions(data: st.DataObject) -> None:
    run(data, relating, namespaces(), made=calm_nodes())


@thorough
@given(st.data())
def test_volumes(data: st.DataObject) -> None:
    run(data, storing, storage(), made=calm_nodes(), before=backdrop())


@st.composite
def everything(draw: st.DrawFn, name: str) -> b.PodBuilder:
    """One pod with all kinds of rules at once."""
    made = draw(plain(name))
    for part in (spreading, relating, storing):
        other = draw(part(name))
        for field in ("affinity", "topologySpreadConstraints", "volumes"):
            if field in other.spec:
                if field == "affinity":
                    made.spec.setdefault("affinity", {}).update(other.spec["affinity"])
                else:
                    made.spec.setdefault(field, []).extend(other.spec[field])
    return made.ns("default")


@settings(thorough, max_examples=80)
@given(st.data())
def test_all_plugins_together(data: st.DataObject) -> None:
    run(data, everything, st.one_of(owners(), namespaces(), storage()))


ADDED = NodeSelector([NodeSelectorTerm([NodeSelectorRequirement("size", "Exists")])])
VARIANTS: list[tuple[str, dict[str, Any], Plugin, Pods]] = [
    (
        "NodeResourcesFit",
        {"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "nvidia.com/gpu", "weight": 3}]}},
        NodeResourcesFit("MostAllocated", {"nvidia.com/gpu": 3}),
        plain,
    ),
    (
        "NodeResourcesFit",
        {
            "ignoredResources": ["nvidia.com/gpu"],
            "scoringStrategy": {
                "type": "RequestedToCapacityRatio",
                "resources": [{"name": "cpu", "weight": 2}, {"name": "memory", "weight": 1}],
                "requestedToCapacityRatio": {
                    "shape": [{"utilization": 0, "score": 2}, {"utilization": 70, "score": 10}, {"utilization": 100}]
                },
            },
        },
        NodeResourcesFit(
            "RequestedToCapacityRatio",
            {"cpu": 2, "memory": 1},
            [(0, 2), (70, 10), (100, 0)],
            ignored=("nvidia.com/gpu",),
        ),
        plain,
    ),
    (
        "NodeResourcesBalancedAllocation",
        {"resources": [{"name": "cpu"}, {"name": "memory"}, {"name": "nvidia.com/gpu"}]},
        NodeResourcesBalancedAllocation(("cpu", "memory", "nvidia.com/gpu")),
        plain,
    ),
    (
        "NodeAffinity",
        {
            "addedAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "size", "operator": "Exists"}]}]
                }
            }
        },
        NodeAffinityPlugin(NodeAffinity(required=ADDED)),
        plain,
    ),
    (
        "PodTopologySpread",
        {
            "defaultingType": "List",
            "defaultConstraints": [
                {"maxSkew": 1, "topologyKey": "rack", "whenUnsatisfiable": "DoNotSchedule"},
                {"maxSkew": 2, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "ScheduleAnyway"},
            ],
        },
        PodTopologySpread(
            [
                Constraint(max_skew=1, topology_key="rack"),
                Constraint(max_skew=2, topology_key="topology.kubernetes.io/zone", when_unsatisfiable="ScheduleAnyway"),
            ],
            system_defaults=False,
        ),
        spreading,
    ),
    (
        "InterPodAffinity",
        {"hardPodAffinityWeight": 20, "ignorePreferredTermsOfExistingPods": True},
        InterPodAffinity(20, True),
        relating,
    ),
    (
        "VolumeBinding",
        {"shape": [{"utilization": 0}, {"utilization": 50, "score": 7}, {"utilization": 100, "score": 10}]},
        VolumeBinding([(0, 0), (50, 7), (100, 10)]),
        storing,
    ),
]


@pytest.mark.parametrize(
    ("name", "args", "plugin", "pods"), VARIANTS, ids=[f"{v[0]}-{i}" for i, v in enumerate(VARIANTS)]
)
@settings(thorough, max_examples=25)
@given(data=st.data())
def test_plugin_arguments(name: str, args: dict[str, Any], plugin: Plugin, pods: Pods, data: st.DataObject) -> None:
    others = [plugin if known.name == name else known for known in PLUGINS]
    objects = {"PodTopologySpread": owners(), "InterPodAffinity": namespaces(), "VolumeBinding": storage()}.get(name)
    made = None if pods is plain else calm_nodes()
    before = backdrop() if pods is storing else None
    run(data, pods, objects, World(others, {name: args}), made=made, before=before)


def test_scores_stay_right_when_the_first_node_is_gone() -> None:
    """A free row keeps a score of 0, which must not pass for the score all nodes share."""
    world = World()
    world.see(b.node("n0").build())
    world.see(b.node("n1").taint("k", effect="PreferNoSchedule").build())
    pod = b.pod("x").build()
    world.check(pod)
    world.gone(b.node("n0").build())
    world.check(pod)


@pytest.mark.parametrize("moves", [1, 300, 700, 40_000])
def test_verdicts_stay_right_however_much_happened_since_the_last_look(moves: int) -> None:
    """Short histories are followed, longer ones lost and made up for, at every level that keeps one."""
    world = World()
    for i in range(3):
        world.see(b.node(f"n{i}").zone(f"z{i}").build())
    world.see(b.pod("a").label("app", "web").node("n0").anti_affinity(HOST, {"app": "db"}).build())
    candidates = [
        b.pod("x").label("app", "db").build(),
        b.pod("y").label("app", "db").spread(ZONE, {"app": "web"}, soft=True).affinity(HOST, {"app": "web"}).build(),
        b.pod("z").label("app", "web").spread(ZONE, {"app": "web"}).anti_affinity(HOST, {"app": "web"}).build(),
    ]
    columns, record = world.engine.columns, world.engine.pods.records["default/a"]
    for many in (moves, 1, moves, 2):
        for candidate in candidates:
            world.check(candidate)
        for i in range(many):
            row = record.row
            columns.unplace(record)
            columns.place(record, (row + 1 + i % 2) % 3)
    for candidate in candidates:
        world.check(candidate)
