"""Columns, journal and evaluations: whatever happened, the incremental state equals one made from scratch."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from phalanx.engine.framework import Handle, adapters, evaluation
from phalanx.engine.framework.evaluation import Evaluation
from phalanx.engine.framework.profile import Profile
from phalanx.engine.framework.settings import ProfileSettings
from phalanx.engine.plugins.registry import Indexes, builtin, plugins_of
from phalanx.engine.state.columns import MAX_DEVICES, Columns
from phalanx.engine.state.label_interest import LabelInterest
from phalanx.engine.state.objects import Objects
from phalanx.engine.state.records import PodRecord
from phalanx.engine.state.shapes import ShapeTable
from phalanx.model.gates import Gates
from phalanx.model.groups import GroupForest
from phalanx.model.objects.pod import PersistentVolumeClaimVolumeSource, Volume
from phalanx.testing.builders import node, pod


@pytest.fixture(autouse=True)
def usual_rows(monkeypatch):
    """Whatever a test sets is put back."""
    monkeypatch.setattr(adapters, "FEW_ROWS", adapters.FEW_ROWS)
    monkeypatch.setattr(evaluation, "FEW_ROWS", evaluation.FEW_ROWS)


STRATEGIES = [
    {"type": "LeastAllocated"},
    {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 3}, {"name": "nvidia.com/gpu", "weight": 1}]},
    {
        "type": "RequestedToCapacityRatio",
        "requestedToCapacityRatio": {"shape": [{"utilization": 0, "score": 0}, {"utilization": 70, "score": 10}]},
    },
]


class Bench:
    def __init__(self, strategy=None):
        self.columns = Columns(capacity=4)
        self.objects = Objects()
        self.interest = LabelInterest()
        self.shapes = ShapeTable(self.columns, self.interest)
        handle = Handle(self.columns, self.objects, self.interest, Gates(), GroupForest())
        args = {"NodeResourcesFit": {"scoringStrategy": strategy}} if strategy else {}
        balanced = [{"name": "cpu"}, {"name": "memory"}, {"name": "nvidia.com/gpu"}]
        args["NodeResourcesBalancedAllocation"] = {"resources": balanced}
        chosen = ProfileSettings(args=args)
        indexes = Indexes.of(self.columns, self.objects, self.interest)
        self.profile = Profile(chosen, plugins_of(chosen), builtin(indexes), handle)
        self.placed: list[PodRecord] = []
        self.count = 0

    def evaluation(self, shape):
        return Evaluation(shape, self.profile, self.columns, self.objects)

    def place(self, builder, row):
        self.count += 1
        built = builder.copy(f"p{self.count}").build()
        record = PodRecord(built, self.shapes.of(built), self.count, 0.0)
        self.columns.place(record, row)
        self.placed.append(record)

    def dump(self):
        c = self.columns
        by_label = {key: [column.values[i] for i in column.ids[: c.n]] for key, column in c.labels.items()}
        return copy.deepcopy((
            c.alive[: c.n].tolist(), c.alloc[:8, : c.n].tolist(), c.used[:8, : c.n].tolist(),
            c.nonzero[:, : c.n].tolist(), c.unschedulable[: c.n].tolist(), by_label,
            [c.taint_sets[i] for i in c.taint_set[: c.n]], c.names, c.row_of, [sorted(p) for p in c.pods],
            {k: v for k, v in c.images._rows.items() if v}, c.ports._rows,
        ))  # fmt: skip


def test_the_volume_of_the_service_account_does_not_make_every_pod_look_new(monkeypatch):
    """Clusters mount one in every pod, under a name that differs: finding the shape must stay a look-up."""
    looked: list[str] = []
    careful = ShapeTable._canonical
    monkeypatch.setattr(ShapeTable, "_canonical", lambda self, p: looked.append(p.metadata.name) or careful(self, p))
    bench = Bench()

    def shape(name: str, *volumes: Volume):
        built = pod(name).cpu("1").build()
        return bench.shapes.of(replace(built, spec=replace(built.spec, volumes=list(volumes))))

    plain = shape("first")
    assert {shape(f"p{n}", Volume(name=f"kube-api-access-{n}")) for n in range(50)} == {plain}
    assert len(looked) == 2, "with no volumes and with one that matters to no pod"
    claim = PersistentVolumeClaimVolumeSource(claim_name="data")
    other = shape("q", Volume(name="kube-api-access-q"), Volume(name="d", persistent_volume_claim=claim))
    assert other is not plain and [volume.name for volume in other.volumes] == ["d"]


PODS = [
    pod("p").cpu("500m").mem("1Gi"),
    pod("p").cpu("2"),
    pod("p"),
    pod("p").cpu("1").port(80).select("disk", "ssd"),
    pod("p").gpu(1).tolerate("k", "v").prefer_node(10, ("disk", "In", ["ssd"])).prefer_node(5, ("gen", "Gt", ["1"])),
    pod("p").image("app:1").node_affinity(("gen", "Lt", ["3"])),
]


@st.composite
def nodes(draw):
    built = node(f"n{draw(st.integers(0, 6))}").cpu(draw(st.sampled_from(["0", "1", "4", "64"])))
    built.mem(draw(st.sampled_from(["0", "1Gi", "32Gi", "nonsense"]))).pods(draw(st.integers(0, 4)))
    if draw(st.booleans()):
        built.gpu(draw(st.integers(0, 3)))
    for key, values in (("disk", ["ssd", "hdd"]), ("gen", ["1", "2", "x"])):
        if draw(st.booleans()):
            built.label(key, draw(st.sampled_from(values)))
    if draw(st.booleans()):
        built.taint("k", "v", draw(st.sampled_from(["NoSchedule", "PreferNoSchedule"])))
    if draw(st.booleans()):
        built.image(draw(st.integers(0, 900)) * 1024 * 1024, "app:1")
    return built.unschedulable(draw(st.integers(0, 4)) == 0).build()


steps = st.lists(
    st.one_of(
        st.tuples(st.just("node"), nodes()),
        st.tuples(st.just("gone"), st.integers(0, 6)),
        st.tuples(st.just("place"), st.integers(0, len(PODS) - 1), st.integers(0, 10)),
        st.tuples(st.just("unplace"), st.integers(0, 30)),
        st.tuples(st.just("several"), st.integers(0, 30), st.integers(0, 10)),
        st.tuples(st.just("look"), st.integers(0, len(PODS) - 1)),
    ),
    max_size=25,
)


def do(bench: Bench, step, evaluations, shapes) -> None:
    columns = bench.columns
    if step[0] == "node":
        columns.set_node(step[1])
    elif step[0] == "gone" and f"n{step[1]}" in columns.row_of:
        for record in columns.remove_node(f"n{step[1]}"):
            bench.placed.remove(record)
    elif step[0] == "place" and columns.row_of:
        rows = sorted(columns.row_of.values())
        bench.place(PODS[step[1]], rows[step[2] % len(rows)])
    elif step[0] == "unplace" and bench.placed:
        columns.unplace(bench.placed.pop(step[1] % len(bench.placed)))
    elif step[0] == "several" and bench.placed:  # off their rows at once, and half of them elsewhere at once
        off = bench.placed[step[1] % len(bench.placed) :]
        columns.unplace_all(off)
        rows = sorted(columns.row_of.values())
        on = off[: len(off) // 2]
        columns.place_all([(record, rows[(step[2] + i) % len(rows)]) for i, record in enumerate(on)])
        bench.placed = [record for record in bench.placed if record.row >= 0]
    elif step[0] == "look":
        evaluations[step[1]].refresh()


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(before=steps, trial=steps, after=steps, strategy=st.sampled_from(STRATEGIES), few=st.sampled_from([0, 32]))
def test_incremental_equals_from_scratch_after_any_changes_and_rewinds(before, trial, after, strategy, few):
    adapters.FEW_ROWS = evaluation.FEW_ROWS = few  # row by row, or as vectors of rows
    bench = Bench(strategy)
    shapes = [bench.shapes.of(builder.build()) for builder in PODS]
    evaluations = [bench.evaluation(shape) for shape in shapes]
    for key in ("disk", "gen"):
        bench.columns.label(key)  # columns are made on demand, and stay
    for step in before:
        do(bench, step, evaluations, shapes)
    held = bench.dump()
    placed = list(bench.placed)
    mark = bench.columns.journal.mark()
    for step in trial:
        do(bench, step, evaluations, shapes)
    bench.columns.journal.rewind(mark)
    bench.placed = placed
    grown = bench.columns.n - len(held[0])
    assert bench.dump() == padded(held, grown)
    for step in after:
        do(bench, step, evaluations, shapes)
    n = bench.columns.n
    for shape, followed in zip(shapes, evaluations, strict=True):
        followed.refresh()
        fresh = bench.evaluation(shape)
        fresh.refresh()
        assert followed.feasible[:n].tolist() == fresh.feasible[:n].tolist()
        assert followed.total[:n].tolist() == fresh.total[:n].tolist()
        assert followed.slots().tolist() == fresh.slots().tolist()
        assert followed.best() == fresh.best()
        best = fresh.best()
        if best >= 0:
            assert best == int(np.argmax(fresh.total)) and fresh.feasible[best]
        else:
            assert not fresh.feasible.any()


def padded(dump, rows: int):
    """The dump with free rows at the end: rows made in a trial stay, empty."""
    alive, alloc, used, nonzero, unschedulable, labels, taints, names, row_of, pods, images, ports = dump
    zeros = [0.0] * rows
    return (
        alive + [False] * rows, [row + zeros for row in alloc], [row + zeros for row in used],
        [row + zeros for row in nonzero], unschedulable + [False] * rows,
        {key: values + [""] * rows for key, values in labels.items()}, taints + [()] * rows, names + [""] * rows,
        row_of, pods + [[]] * rows, images, ports,
    )  # fmt: skip


def test_marks_nest_and_release_keeps_what_an_outer_rewind_still_undoes():
    bench = Bench()
    bench.columns.set_node(node("n").build())
    held = bench.dump()
    outer = bench.columns.journal.mark()
    bench.place(PODS[0], 0)
    inner = bench.columns.journal.mark()
    bench.place(PODS[1], 0)
    bench.columns.journal.release(inner)
    again = bench.columns.journal.mark()
    bench.place(PODS[2], 0)
    bench.columns.journal.rewind(again)
    assert bench.columns.used[0, 0] == 2500
    bench.columns.journal.rewind(outer)
    assert bench.dump() == held
    with pytest.raises(ValueError, match="not open"):
        bench.columns.journal.rewind(outer)


def test_many_that_move_at_once_are_counted_as_if_they_moved_one_by_one():
    """Enough of one shape to be added up as vectors, several on a row, ports among them; and it is one operation."""
    at_once, singly = Bench(), Bench()
    for bench in (at_once, singly):
        for i in range(4):
            bench.columns.set_node(node(f"n{i}").cpu("64").mem("64Gi").pods(100).build())
        for i in range(60):
            bench.place(PODS[(0, 3)[i % 7 == 0]], i % 4)
    held = at_once.dump()
    mark = at_once.columns.journal.mark()
    at_once.columns.unplace_all(at_once.placed[10:])
    for record in singly.placed[10:]:
        singly.columns.unplace(record)
    assert at_once.dump() == singly.dump()
    parked = at_once.columns.journal.park()
    assert at_once.dump() == held and len(parked.redo) == 1
    assert at_once.columns.journal.unpark(parked, lambda operation: True)
    assert at_once.dump() == singly.dump()
    at_once.columns.place_all([(record, 1) for record in at_once.placed[20:]])
    for record in singly.placed[20:]:
        singly.columns.place(record, 1)
    assert at_once.dump() == singly.dump()
    at_once.columns.journal.rewind(mark)
    assert at_once.dump() == held


def test_slots_count_what_still_fits_on_each_node():
    bench = Bench()
    for builder in (node("a").cpu("4").mem("4Gi"), node("b").cpu("1").mem("64Gi"), node("c").cpu("64").pods(3)):
        bench.columns.set_node(builder.build())
    looked = bench.evaluation(bench.shapes.of(pod("p").cpu("1").mem("1Gi").build()))
    looked.refresh()
    assert looked.slots().tolist() == [4, 1, 3]
    bench.place(pod("p").cpu("1500m"), 0)
    looked.refresh()
    assert looked.slots().tolist() == [2, 1, 3]


def test_many_nodes_grow_the_columns_without_losing_anything():
    bench = Bench()
    looked = bench.evaluation(bench.shapes.of(pod("p").cpu("1").build()))
    for number in range(700):
        row = bench.columns.set_node(node(f"n{number}").cpu(str(number % 7)).build())
        bench.place(pod("x").cpu("1"), row)
        if number % 100 == 0:
            looked.refresh()
    looked.refresh()
    assert looked.feasible[:700].tolist() == [number % 7 >= 2 for number in range(700)]


def test_a_resource_first_asked_for_later_is_filled_from_the_nodes_that_are_there():
    bench = Bench()
    bench.columns.set_node(node("n").resource("hugepages-2Mi", "6Mi").build())
    assert "hugepages-2Mi" not in bench.columns.resources
    shape = bench.shapes.of(pod("p").resource("hugepages-2Mi", "4Mi").build())
    looked = bench.evaluation(shape)
    looked.refresh()
    assert looked.slots().tolist() == [1]


def test_devices_are_known_as_soon_as_a_node_offers_them_but_not_without_end():
    bench = Bench()
    for number in range(MAX_DEVICES + 5):
        bench.columns.set_node(node(f"n{number}").resource(f"example.com/d{number}", "1").build())
    assert len(bench.columns.devices()) == MAX_DEVICES
    bench.columns.resource("example.com/late")  # a pod's request is never refused a column
    assert bench.columns.resource_names[-1] == "example.com/late"


def test_numbers_of_values_of_removed_nodes_are_reused_and_holders_of_a_column_keep_theirs():
    bench = Bench()
    bench.columns.label("rack")
    for number in range(500):
        bench.columns.set_node(node(f"n{number}").label("rack", f"r{number}").build())
        if number >= 3:
            bench.columns.remove_node(f"n{number - 3}")
    held = bench.columns.label("rack")
    ids, generation = held.ids.copy(), bench.columns.generation
    assert held.size > 400 and bench.columns.outgrown()
    bench.columns.remove_unused(())
    column = bench.columns.label("rack")
    assert column.size == 4 and bench.columns.generation > generation
    for row, found in enumerate(bench.columns.nodes):
        if found is not None:
            assert column.values[column.ids[row]] == held.values[held.ids[row]] == found.metadata.labels["rack"]
    order = [row for row in np.argsort(ids) if ids[row]]
    assert [row for row in np.argsort(column.ids) if column.ids[row]] == order
    assert (held.ids == ids).all()


def test_a_resource_that_no_pod_asks_for_frees_its_column():
    bench = Bench()
    bench.columns.set_node(node("n").resource("example.com/here", "1").build())
    kept = bench.columns.resource("example.com/kept")
    for number in range(100):
        bench.columns.resource(f"example.com/d{number}")
    bench.columns.remove_unused({kept})
    assert bench.columns.resources["example.com/kept"] == kept
    assert "example.com/here" in bench.columns.resources and "example.com/d7" not in bench.columns.resources
    again = bench.columns.resource("example.com/again")
    assert again < 50 and bench.columns.resource_names[again] == "example.com/again"
    assert not bench.columns.alloc[again].any()


def test_the_log_of_a_small_cluster_keeps_few_changes():
    """They refer to the records of pods that are gone: an hour of churn must not cost tens of MiB."""
    assert Columns().log.keep == 2_048
    assert Columns(10_000).log.keep == 16_384
    columns = Columns(128)
    while columns.capacity < 1_000:
        columns.set_node(node(f"n{columns.n}").build())
    assert columns.log.keep == 16_384
