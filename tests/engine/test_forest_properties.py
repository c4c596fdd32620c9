"""Whatever the order of arrival, deletion and repair, the forest ends up the same."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.model.groups import COMPLETED_IN, COMPOSITE, POD_GROUP, RUN, GroupForest, GroupKey
from support.group_objects import composite, gang_template, pod, pod_group, workload

COMPOSITES = ("c0", "c1", "c2", "c3", "c4")
LEAVES = ("g0", "g1", "g2")
names = st.sampled_from

composites = st.builds(
    lambda n, p, m, w, q: ("composite", n, {"gang": m, "parent": p, "workload": w, "priority": q, "template": f"t{n}"}),
    names(COMPOSITES),
    st.none() | names(COMPOSITES),
    st.integers(1, 2),
    names(("w", "w", "w", "v")),
    names((0, 0, 0, 5)),
)
leaves = st.builds(
    lambda n, p, m, k: ("group", n, {"gang": m, "parent": p, "workload": "w", "template": k}),
    names(LEAVES),
    st.none() | names(COMPOSITES),
    st.integers(1, 3),
    names(("ta", "tb")),
)
pods = st.builds(
    lambda n, g, x, ph, a: ("pod", n, {"group": g, "node": x, "phase": ph, "annotations": a}),
    names(("p0", "p1", "p2", "p3", "p4", "p5")),
    st.none() | names(LEAVES),
    names(("", "n1")),
    names(("Pending", "Running", "Succeeded", "Failed")),
    names(({}, {RUN: "one"}, {RUN: "one", COMPLETED_IN: "one"}, {RUN: "two"}, {RUN: "two", COMPLETED_IN: "two"})),
)
workloads = st.builds(lambda t: ("workload", "w", {"leaf": t}), names(("ta", "tb")))
objects = st.one_of(composites, leaves, pods, workloads)


def _put(forest: GroupForest, event: tuple[str, str, dict[str, Any]]) -> None:
    kind, name, more = event
    if kind == "composite":
        forest.put_composite(composite(name, **more))
    elif kind == "group":
        forest.put_pod_group(pod_group(name, **more))
    elif kind == "workload":
        template = {"name": "tc0", "podGroupTemplates": [gang_template(more["leaf"], 1)]}
        forest.put_workload(workload(name, nested=[template]))
    elif more["group"] is None:
        forest.put_pod(pod(name, ref=("w", "ta", "k"), node=more["node"], phase=more["phase"]))
    else:
        forest.put_pod(pod(name, more["group"], node=more["node"], phase=more["phase"]))


def _drop(forest: GroupForest, event: tuple[str, str, dict[str, Any]]) -> None:
    kind, name, _ = event
    if kind in ("composite", "group"):
        forest.drop(GroupKey(COMPOSITE if kind == "composite" else POD_GROUP, "ns", name))
    else:
        (forest.drop_workload if kind == "workload" else forest.drop_pod)("ns", name)


def picture(forest: GroupForest) -> dict[GroupKey, object]:
    """Everything an engine can ask."""
    shown: dict[GroupKey, object] = {}
    keys = [GroupKey("CompositePodGroup", "ns", n) for n in COMPOSITES]
    keys += [GroupKey("PodGroup", "ns", n) for n in LEAVES] + [GroupKey("Workload", "ns", "w/ta/k")]
    for key in keys:
        group = forest.group(key)
        if group is None:
            continue
        resolution = forest.resolve(key)
        invalid = forest.invalid(key)
        shown[key] = (
            resolution.root,
            resolution.missing,
            resolution.cycle,
            invalid,
            None if resolution.cycle else (forest.quorum(key).ready, forest.quorum(key).message),
            [c.key for c in group.sorted_children()],
            group.counts,
            (group.known, group.placed),
            forest.mismatch(key),
        )
    shown[GroupKey("", "", "")] = forest.roots()
    return shown


# Trees without faults, so that quorum and membership get their share of the examples.
healthy_composites = st.builds(
    lambda n, p, m: ("composite", f"c{n}", {"gang": m, "parent": f"c{p}" if p < n else None, "workload": "w"}),
    st.integers(0, 2),
    st.integers(0, 2),
    st.integers(1, 2),
)
healthy_leaves = st.builds(
    lambda n, p: ("group", n, {"gang": 1, "parent": p, "workload": "w", "template": "ta"}),
    names(LEAVES),
    names(("c0", "c1", "c2", None)),
)
healthy_pods = st.builds(
    lambda n, g: ("pod", n, {"group": g, "node": "", "phase": "Pending"}), names(("p0", "p1", "p2")), names(LEAVES)
)
healthy = st.one_of(healthy_composites, healthy_leaves, healthy_pods)


def _same_whatever_the_history(data: st.DataObject, events: st.SearchStrategy[tuple[str, str, dict[str, Any]]]) -> None:
    final = {(kind, name): (kind, name, more) for kind, name, more in data.draw(st.lists(events, max_size=14))}
    straight = GroupForest()
    for event in final.values():
        _put(straight, event)
    shuffled = GroupForest()
    for event in data.draw(st.lists(events, max_size=16)):  # must leave no trace
        _put(shuffled, event)
        if data.draw(st.booleans()):
            _drop(shuffled, event)
    for event in data.draw(st.permutations(list(final.values()))):
        _put(shuffled, event)
    for name in (*COMPOSITES, *LEAVES, "w", *(f"p{i}" for i in range(6))):
        for kind in ("composite", "group", "workload", "pod"):
            if (kind, name) not in final:
                _drop(shuffled, (kind, name, {}))
    assert picture(shuffled) == picture(straight)


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_any_order_of_arrival_gives_the_same_forest(data: st.DataObject) -> None:
    _same_whatever_the_history(data, objects)


@settings(max_examples=250, deadline=None)
@given(st.data())
def test_any_order_of_arrival_gives_the_same_quorum(data: st.DataObject) -> None:
    _same_whatever_the_history(data, healthy)


@settings(max_examples=100, deadline=None)
@given(st.lists(objects, max_size=14))
def test_dropping_everything_leaves_nothing_behind(events: list[tuple[str, str, dict[str, Any]]]) -> None:
    forest = GroupForest()
    for event in events:
        _put(forest, event)
    for event in events:
        _drop(forest, event)
    assert not forest.roots()
    assert picture(forest) == picture(GroupForest())
