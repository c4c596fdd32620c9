"""States and transitions of pods and scheduling units, and the history kept of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.events import PERMANENT, Gone, NodeChanged, Outcome, PodChanged
from phalanx.engine.framework.settings import EngineSettings
from phalanx.engine.scheduling.lifecycle import pod_lifecycle
from phalanx.engine.scheduling.lifecycle.history import MOST_GONE, MOST_NOTES, MOST_OBJECTS
from phalanx.engine.scheduling.lifecycle.isolation import Isolation
from phalanx.engine.scheduling.lifecycle.transitions import IllegalTransition
from phalanx.engine.scheduling.queue.units import UnitState
from phalanx.engine.state.records import PodRecord, PodState
from phalanx.model.groups import GroupKey, MemberState
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group
from support.asked_engine import Asked


def binds(made: list[d.Decision]) -> list[d.Bind]:
    return [each for each in made if isinstance(each, d.Bind)]


def test_a_pod_goes_through_its_states_until_the_informer_shows_it() -> None:
    engine = Engine()
    engine.apply(NodeChanged(node("n").cpu("1").build()))
    engine.apply(PodChanged(pod("p").cpu("1").build()))
    record = engine.pods.records["default/p"]
    assert record.state is PodState.PENDING
    (bind,) = binds(engine.step(1.0))
    assert record.state is PodState.BINDING and record.assumed
    engine.apply(Outcome(bind.id))
    assert record.state is PodState.CONFIRMED and record.assumed
    engine.apply(PodChanged(pod("p").cpu("1").node("n").build()))
    assert record.state is PodState.BOUND and not record.assumed
    engine.validate()


def test_a_failed_bind_takes_everything_back() -> None:
    engine = Engine()
    engine.apply(NodeChanged(node("n").cpu("1").build()))
    engine.apply(PodChanged(pod("p").cpu("1").build()))
    (bind,) = binds(engine.step(1.0))
    engine.apply(Outcome(bind.id, PERMANENT, "forbidden"))
    record = engine.pods.records["default/p"]
    assert record.state is PodState.PENDING and record.row < 0 and not engine.pod_lifecycle.unit_of
    engine.validate()
    assert [note.what for note in engine.history.of("default/p")] == [
        "taken back",
        "SchedulerError",
    ]


def bound_pod(settings: EngineSettings) -> tuple[Engine, PodRecord]:
    engine = Engine(settings)
    engine.apply(NodeChanged(node("n").cpu("1").build()))
    engine.apply(PodChanged(pod("p").cpu("1").node("n").build()))
    return engine, engine.pods.records["default/p"]


def test_an_illegal_transition_raises_where_the_settings_are_strict() -> None:
    engine, record = bound_pod(EngineSettings(strict_transitions=True))
    with pytest.raises(IllegalTransition, match="default/p: BOUND to BINDING"):
        engine.pod_lifecycle.binding(record, 7)


def test_an_illegal_transition_is_counted_and_not_made_in_production(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Isolation, "strict", False)
    engine, record = bound_pod(EngineSettings())
    engine.pod_lifecycle.binding(record, 7)
    assert record.state is PodState.BOUND and record.bind == 0
    assert engine.illegal_transitions.count == 1
    assert engine.illegal_transitions.take() == ["default/p: BOUND to BINDING"]
    assert engine.illegal_transitions.take() == []
    with pytest.raises(AssertionError, match="BOUND to BINDING"):
        engine.validate()


def test_an_engine_that_is_validated_is_strict_from_then_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Isolation, "strict", False)
    engine, record = bound_pod(EngineSettings())
    engine.validate()
    with pytest.raises(IllegalTransition):
        engine.pod_lifecycle.binding(record, 7)


WRITES = re.compile(
    r"\b(record|old|pod|member|other)\.(bind|nominated|state) = "
    r"|\b(unit|root)\.(gate|plan|state) = "
    r"|nominations\.(set|clear)\("
)


def test_only_the_lifecycle_writes_states_nominations_binds_and_gates() -> None:
    """Of existing pods and units: constructors, and the records of questions, are not those of the scheduler."""
    engine = Path(pod_lifecycle.__file__).parents[2]
    owners = {"pod_lifecycle.py", "unit_lifecycle.py", "units.py", "records.py", "nominations.py", "whatif.py"}
    found = [
        f"{path.name}: {line.strip()}"
        for path in engine.rglob("*.py")
        if path.name not in owners
        for line in path.read_text().splitlines()
        if WRITES.search(line)
    ]
    assert found == []


@pytest.mark.parametrize(
    "table", ["nominations", "binds", "evictions", "unknown nodes", "waiting", "state", "catalogue"]
)
def test_validate_looks_at_every_table(table: str) -> None:
    run = Asked().see(node("n").cpu("1"), pod("low").cpu("1").priority(1).node("n"))
    run.see(pod_group("g").gang(1).priority(9), pod("g-0").cpu("1").priority(9).group("g"), pod("p").cpu("1"))
    run.step()
    engine = run.engine
    engine.validate()
    member = engine.pods.records["default/g-0"]
    if table == "nominations":
        member.nominated = "elsewhere"
    elif table == "binds":
        engine.cluster.forest.leaves(GroupKey("PodGroup", "default", "g"))[0].counts[MemberState.ASSUMED] += 1
    elif table == "evictions":
        engine.queue.units["podgroup/default/g"].plan.victims["default/nobody"] = "x"
    elif table == "unknown nodes":
        engine.pod_lifecycle.pods_on_unknown_nodes["n"] = {"default/low": engine.pods.records["default/low"]}
    elif table == "waiting":
        engine.groups.waiting_pods.clear()
    elif table == "state":
        member.state = PodState.CONFIRMED
    else:
        engine.preemption.victim_index.units.clear()
    with pytest.raises(AssertionError):
        engine.validate()


def test_a_group_goes_through_its_states_and_why_tells_the_story() -> None:
    run = Asked().see(node("n").cpu("2"), pod("low").cpu("2").priority(1).node("n"))
    lifecycle = run.engine.unit_lifecycle
    group, first, second = (
        pod_group("g").gang(2).priority(9),
        *(pod(f"g-{i}").cpu("1").priority(9).group("g") for i in range(2)),
    )
    run.see(group, first).step()
    assert lifecycle.of("podgroup/default/g") is UnitState.HELD
    run.see(second).step()
    assert lifecycle.of("podgroup/default/g") is UnitState.EVICTING
    run.gone("Pod", "low").step(1.0)
    assert lifecycle.of("podgroup/default/g") is UnitState.SCHEDULED
    story = [(line.what, line.detail) for line in run.why("PodGroup", "g").story]
    assert [what for what, _ in story] == ["held", "queued", "evicting", "refused", "queued", "committing", "scheduled"]
    assert ("evicting", "1 pod has to go") in story and ("committing", "2 pods") in story
    member = run.why("Pod", "g-0").story
    assert member[0].what == "asked for a node" or member[0].of
    assert "shown on" in [line.what for line in member]
    assert {line.of for line in member} == {"", "podgroup/default/g"}


def test_stories_are_bounded() -> None:
    engine = Engine()
    for i in range(MOST_OBJECTS + 5):
        engine.history.note(f"default/p{i}", "seen")
    assert len(engine.history) <= MOST_OBJECTS
    for i in range(100):
        engine.history.note("default/x", "tried", str(i))
    notes = engine.history.of("default/x")
    assert len(notes) == MOST_NOTES and notes[0].detail == "0" and notes[-1].detail == "99"
    engine.history.note("default/x", "tried", "99")
    assert engine.history.of("default/x")[-1].times == 2


def test_stories_of_the_last_deleted_objects_are_kept_and_those_of_waiting_pods() -> None:
    run = Cluster()
    run.see(node("n").cpu("1"), *(pod(f"waits-{i}").cpu("9") for i in range(5))).step(1.0)
    for i in range(3 * MOST_GONE):
        run.engine.history.note(f"default/gone-{i}", "seen")
    assert len(run.engine.history) <= 2 * (MOST_GONE + 5)
    assert all(run.engine.history.of(f"default/waits-{i}") for i in range(5))
    assert run.engine.history.of(f"default/gone-{2 * MOST_GONE}") and not run.engine.history.of("default/gone-0")


def test_a_changed_pod_does_not_get_back_a_nomination_that_was_given_up() -> None:
    engine = Engine()
    engine.apply(NodeChanged(node("n").cpu("1").build()))
    engine.apply(PodChanged(pod("big").cpu("2").nominated("n").build()))
    engine.step(1.0)  # nothing can make room for it: the promise is taken back, and being written
    assert not engine.nominations
    engine.apply(PodChanged(pod("big").cpu("2").nominated("n").label("app", "x").build()))
    assert engine.pods.records["default/big"].nominated == ""
    engine.validate()


def test_a_pod_whose_bind_failed_is_promised_the_room_that_is_still_being_made_for_it() -> None:
    """It had got a node elsewhere meanwhile. Waiting for its victims without a promise, others would have the room."""
    engine = Engine()
    engine.apply(NodeChanged(node("a").cpu("1").build()))
    engine.apply(PodChanged(pod("low").cpu("1").priority(1).node("a").build()))
    engine.apply(PodChanged(pod("high").cpu("1").priority(9).build()))
    (evict,) = (each for each in engine.step(1.0) if isinstance(each, d.Evict))
    engine.apply(Outcome(evict.id))
    engine.apply(PodChanged(pod("low").cpu("1").priority(1).node("a").deleting().build()))
    engine.apply(NodeChanged(node("b").cpu("1").build()))
    (bind,) = binds(engine.step(2.0))
    assert bind.node == "b" and engine.unit_lifecycle.of("pod/default/high") is UnitState.NONE
    engine.apply(Outcome(bind.id, PERMANENT, "forbidden"))
    engine.apply(Gone("Node", "b"))
    made = engine.step(60.0)
    assert [each.node for each in made if isinstance(each, d.Nominate)] == ["a"]
    assert not any(isinstance(each, d.Evict) for each in made), "one eviction is enough"
    assert engine.unit_lifecycle.of("pod/default/high") is UnitState.EVICTING
    engine.validate()
    engine.apply(Gone("Pod", "low", "default"))
    (bind,) = binds(engine.step(61.0))
    assert bind.node == "a"
    engine.validate()


def test_a_held_root_makes_no_room_and_a_root_in_two_states_is_found_by_validate() -> None:
    run = Asked().see(node("n").cpu("2"), pod("low").cpu("2").priority(1).node("n"))
    run.see(pod_group("g").gang(2).priority(9), *(pod(f"g-{i}").cpu("1").priority(9).group("g") for i in range(2)))
    run.step()
    root = run.engine.queue.units["podgroup/default/g"]
    assert root.state is UnitState.EVICTING and root.plan is not None and list(root.plan.victims) == ["default/low"]
    run.gone("Pod", "g-1").step(1.0)
    assert root.state is UnitState.HELD and root.plan is None and not run.engine.unit_lifecycle.is_victim("default/low")
    run.engine.queue.activate(root)  # past the life: what validate is for
    with pytest.raises(AssertionError, match="held"):
        run.engine.validate()
