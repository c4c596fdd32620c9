"""Events and decisions survive JSON, and the same events give the same decisions, bit for bit."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from phalanx.engine import decisions, events
from phalanx.engine.engine import Engine
from phalanx.engine.events import Gone, NodeChanged, Outcome, PodChanged, TimePassed
from phalanx.testing import Cluster
from phalanx.testing.builders import composite, node, pdb, pod, pod_group, pv, pvc, service, storage_class, workload


def test_every_kind_of_event_comes_back_equal():
    objects: list[Any] = [
        pod("p").cpu("1").spread("zone", {"a": "b"}), node("n").taint("k"), pod_group("g").gang(3), composite("c"),
        workload("w"), pv("v"), pvc("c"), storage_class("s"), pdb("b"), service("s"),
    ]  # fmt: skip
    seen: list[events.Event] = [events.CHANGED_BY_KIND[b.kind](b.build()) for b in objects]  # type: ignore[misc,call-arg]
    seen += [Gone("Pod", "p", "ns", "u"), Outcome(3, events.CONFLICT, "text"), TimePassed(1.5)]
    for event in seen:
        assert events.decode(events.encode(event)) == event


def test_every_kind_of_decision_comes_back_equal():
    fields = {"id": 7, "namespace": "ns", "name": "p", "uid": "u"}
    made = [
        decisions.Bind(**fields, node="n"), decisions.Nominate(**fields, node=""),
        decisions.Evict(**fields, message="m", preemptor="pod/ns/q"), decisions.SetPodCondition(**fields, reason="r"),
        decisions.SetGroupCondition(**fields, type="t"), decisions.RecordEvent(**fields, message="é"),
        decisions.BindVolume(**fields, claim_name="c"), decisions.ProvisionVolume(**fields, node="n"),
    ]  # fmt: skip
    for decision in made:
        assert decisions.decode(decisions.encode(decision)) == decision


def history(seed: int) -> list[bytes]:
    """A random stretch of cluster life, as recorded."""
    rng = random.Random(seed)
    run = Cluster(Engine())
    recorded: list[bytes] = []
    real = run.engine.apply

    def apply(event):
        recorded.append(events.encode(event))
        real(event)

    run.engine.apply = apply  # type: ignore[method-assign]
    for number in range(120):
        dice = rng.random()
        if dice < 0.25:
            run.see(node(f"n{rng.randrange(8)}").cpu(str(rng.randrange(1, 5))).label("z", str(rng.randrange(3))))
        elif dice < 0.75:
            run.see(pod(f"p{number}").cpu(f"{rng.randrange(1, 20) * 100}m").priority(rng.randrange(3)))
        elif run.pods:
            name = rng.choice(sorted(run.pods))
            run.pods.pop(name)
            run.gone("Pod", name)
        recorded.append(msgspec.json.encode(["step", run.now + number]))
        run.now += number
        for decision in run.engine.step(run.now):
            recorded.append(b"=" + decisions.encode(decision))
            run.perform(decision)
    return recorded


def test_a_recording_replays_bit_for_bit():
    recorded = history(11)
    engine = Engine()
    out: list[bytes] = []
    for line in recorded:
        if line.startswith(b"="):
            assert out.pop(0) == line[1:]
        elif line.startswith(b"["):
            assert out == []
            out = [decisions.encode(each) for each in engine.step(msgspec.json.decode(line)[1])]
        else:
            engine.apply(events.decode(line))
    assert out == [] and sum(line.startswith(b"=") for line in recorded) > 50


def test_two_runs_of_the_same_history_are_the_same():
    assert history(5) == history(5)


def test_events_of_objects_are_upserts():
    engine = Engine()
    for _ in range(3):
        engine.apply(NodeChanged(node("n").build()))
        engine.apply(PodChanged(pod("p").build()))
    assert [type(each) for each in engine.step(1.0)] == [decisions.Bind]
    engine.validate()
