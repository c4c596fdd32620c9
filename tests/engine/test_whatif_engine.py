"""What would happen: the same answer as when it happens, and nothing left behind."""

from __future__ import annotations

import random
from typing import Any

import pytest

from phalanx.engine import decisions as d
from phalanx.engine.explain import Unknown, plan, why
from phalanx.testing.builders import composite, gang, node, pod, pod_group, workload
from support.asked_engine import Asked, ask, fingerprint, racks


def rack_gang(name: str, size: int, cpu: str = "3") -> list[Any]:
    return gang(name, size, cpu, topology="rack")


def test_a_gang_that_fits_learns_its_domain_and_nodes_and_then_goes_there() -> None:
    run = Asked().see(*racks())
    outlook = ask(run, *rack_gang("g", 2))
    assert outlook.fits
    (would,) = outlook.items
    (place,) = would.places
    assert (would.root, would.pods, place.key) == ("podgroup/default/g", 2, "rack")
    made = run.see(*rack_gang("g", 2)).step()
    assert {b.node for b in made if isinstance(b, d.Bind)} == {share.node for share in place.nodes}


def test_a_gang_that_does_not_fit_gets_the_sentence_of_its_condition() -> None:
    run = Asked().see(*racks())
    (would,) = ask(run, *rack_gang("g", 3)).items
    assert not would.fits
    run.see(*rack_gang("g", 3)).step()
    assert run.last_message("g").startswith(would.summary)
    assert next(change.text for change in would.relaxations if change.fits) == "rack→block fits now"


def test_the_second_root_of_a_file_sees_what_the_first_took() -> None:
    run = Asked().see(node("n").cpu("4"))
    outlook = ask(run, pod("a").cpu("3").priority(1), pod("b").cpu("3").priority(9))
    assert [(would.root, would.fits) for would in outlook.items] == [
        ("pod/default/b", True),
        ("pod/default/a", False),
    ]
    assert not outlook.fits


def test_trees_and_workloads_are_understood() -> None:
    run = Asked().see(*racks())
    tree = [composite("t").gang(2).topology("block")]
    for name in ("x", "y"):
        group, *pods = rack_gang(name, 2)
        tree += [group.parent("t"), *pods]
    (would,) = ask(run, *tree).items
    assert would.fits and [place.key for place in would.places] == ["block", "rack", "rack"]
    assert len({place.domain for place in would.places if place.key == "rack"}) == 2
    members = [pod(f"p-{i}").cpu("1").workload("w", "g", "0") for i in range(2)]
    outlook = ask(run, workload("w").template("g", {"gang": {"minCount": 2}}), *members)
    assert outlook.fits


def test_what_is_missing_is_said_before_anything_is_tried() -> None:
    run = Asked().see(*racks())
    group, first, *_ = rack_gang("g", 3)
    (short,) = ask(run, group, first).items
    assert "has 1 of 3 pods, 2 missing" in short.summary
    (lost,) = ask(run, pod("p").cpu("1").group("nowhere")).items
    assert "waiting for PodGroup nowhere to appear" in lost.summary
    (gated,) = ask(run, pod("p").cpu("1").gate("later")).items
    assert "gates" in gated.summary
    outlook = ask(run, pod("p").cpu("1").scheduler("other"))
    assert outlook.items == [] and not outlook.fits and "names scheduler other" in outlook.notes[0]


def test_pods_may_join_a_group_that_runs_already() -> None:
    run = Asked().see(*racks(), *rack_gang("g", 2, cpu="1"))
    run.step()
    rack = run.why("PodGroup", "g").levels[0].domains
    (would,) = ask(run, pod("g-2").cpu("1").group("g")).items
    assert would.fits and [would.places[0].domain] == rack
    (some,) = ask(run, *(pod(f"more-{i}").cpu("4").group("g") for i in range(3))).items
    assert (some.pods, some.wanted) == (1, 3)  # one rack, one empty node in it
    (none,) = ask(run, pod("huge").cpu("40").group("g")).items
    assert not none.fits and "no further member of PodGroup g fits" in none.summary


def test_names_and_resources_and_rules_of_a_question_stay_in_it() -> None:
    """The same names as running pods, a resource no node has, labels no pod selected before."""
    run = Asked().see(*racks(), *rack_gang("g", 2, cpu="1"))
    run.step()
    outlook = ask(
        run,
        *rack_gang("g", 2, cpu="1"),
        pod("odd").resource("example.com/odd", 1),
        pod("apart").label("app", "x").cpu("1").anti_affinity("rack", {"app": "x"}),
        pod("close").label("app", "x").cpu("1").anti_affinity("rack", {"app": "x"}),
        pod("chosen").cpu("1").select("disk", "ssd"),
    )
    fits = {would.root: would.fits for would in outlook.items}
    assert fits == {
        "podgroup/default/g": True,
        "pod/default/odd": False,
        "pod/default/apart": True,
        "pod/default/close": True,
        "pod/default/chosen": False,
    }
    nodes = {would.root: would.places[0].nodes[0].node for would in outlook.items if would.fits}
    assert int(nodes["pod/default/apart"][1:]) // 2 != int(nodes["pod/default/close"][1:]) // 2


def test_a_plan_names_victims_cost_and_bound_and_evicts_no_pod() -> None:
    run = Asked().see(*racks(4))
    run.see(*(pod(f"low-{i}").cpu("3").priority(1) for i in range(4))).step()
    group, *members = rack_gang("g", 2)
    run.see(group.priority(10).preemption_policy("Never"))
    run.see(*(member.priority(10).preemption_policy("Never") for member in members)).step()
    answer = plan(run.engine, "PodGroup", "default", "g")
    assert (answer.result, answer.victims) == ("none", []) and "Never" in answer.summary

    run.see(pod_group("h").gang(2).topology("rack").priority(10))
    run.see(*(pod(f"h-{i}").cpu("3").group("h").priority(10) for i in range(2)))
    run.engine.groups.settle()
    before = fingerprint(run.engine)
    answer = plan(run.engine, "PodGroup", "default", "h")
    assert fingerprint(run.engine) == before
    assert answer.result == "plan" and len(answer.victims) == 2 and answer.optimal
    assert answer.cost is not None and (answer.cost.pods, answer.cost.highest_priority) == (2, 1)
    assert all(victim.why for victim in answer.victims)
    made = run.step()
    evicted = {f"pod default/{e.name}" for e in made if isinstance(e, d.Evict)}
    assert evicted == {victim.name for victim in answer.victims}
    under_way = plan(run.engine, "PodGroup", "default", "h")
    assert under_way.result == "underWay" and {victim.name for victim in under_way.victims} == evicted


def test_a_plan_for_one_pod_and_for_none() -> None:
    run = Asked().see(node("n").cpu("4"))
    run.see(pod("low").cpu("3")).step()
    run.see(pod("high").cpu("3").priority(5), pod("huge").cpu("30").priority(5))
    answer = plan(run.engine, "Pod", "default", "high")
    assert (answer.result, [victim.name for victim in answer.victims]) == ("plan", ["pod default/low"])
    assert plan(run.engine, "Pod", "default", "huge").result == "hopeless"
    assert plan(run.engine, "Pod", "default", "low").result == "fits"
    with pytest.raises(Unknown):
        plan(run.engine, "PodGroup", "default", "nobody")


@pytest.mark.parametrize("seed", range(8))
def test_a_scheduler_that_is_asked_all_the_time_decides_the_same(seed: int) -> None:
    """Two engines, the same events, questions to one of them."""
    quiet, asked = Asked(), Asked()
    rng, questions = random.Random(seed), random.Random(seed + 1000)
    events = [[each] for each in racks(10)]
    for number in range(14):
        name, size = f"g{number}", rng.randint(1, 4)
        priority = rng.choice([0, 0, 5, 10])
        group = pod_group(name).gang(max(1, size - rng.randint(0, 1))).priority(priority)
        if rng.random() < 0.6:
            group.topology(rng.choice(["rack", "block"]))
        if rng.random() < 0.3:
            group.disrupt_all()
        members = [pod(f"{name}-{i}").cpu(rng.choice("123")).group(name).priority(priority) for i in range(size)]
        if rng.random() < 0.2:
            members = [each.label("app", name).anti_affinity("rack", {"app": name}) for each in members]
        events.append([group, *members])
    quiet.evict = asked.evict = True
    for batch in events:
        for run in (quiet, asked):
            run.see(*batch)
            run.now += 1
        for _ in range(3):
            known = [*asked.pods]
            if known:
                why(asked.engine, "Pod", "default", questions.choice(known))
            extra = questions.randint(1, 5)
            odd = pod("q").cpu("2").label("zone", "q").anti_affinity("rack", {"zone": "q"})
            ask(asked, *rack_gang("q", extra), odd.resource("example.com/q", 1))
            if hasattr(batch[0], "gang"):
                plan(asked.engine, "PodGroup", "default", batch[0].build().metadata.name)
        assert quiet.step() == asked.step()
        if rng.random() < 0.3 and quiet.pods:
            name = rng.choice(sorted(quiet.pods))
            quiet.gone("Pod", name)
            asked.gone("Pod", name)
    assert any(isinstance(each, d.Bind) for each in quiet.log)
