"""A search that takes long lets others go first, goes on where it stopped, and never acts on what is no longer so."""

from __future__ import annotations

import gc
import itertools
import warnings
from typing import Any

import pytest

from phalanx.engine import decisions as d
from phalanx.engine.engine import Engine
from phalanx.engine.explain import why
from phalanx.engine.explain.pending import PendingReasons
from phalanx.engine.framework.settings import EngineSettings
from phalanx.engine.scheduling.attempt import sliced_attempts
from phalanx.engine.scheduling.queue.units import QueueName
from phalanx.testing.builders import node, pod, pod_group
from phalanx.testing.cluster import Cluster
from support.cross_node_constraints import case_of

ZONE = "topology.kubernetes.io/zone"
SLICE = 60


def sliced(work: int = SLICE, budget: int = 2_000) -> Engine:
    return Engine(EngineSettings(search_slice=work, search_budget=budget))


def cluster(engine: Engine, nodes: int = 12) -> Cluster:
    run = Cluster(engine)
    return run.see(*(node(f"n{i}").cpu(2 + i % 3).zone(f"z{i % 3}").label("rack", f"r{i % 4}") for i in range(nodes)))


def hard(name: str = "hard", size: int = 0, *, fits: bool = True, priority: int = 0) -> list[Any]:
    """Members of three sizes that are tied to each other: spread over racks, leaders apart, and, where they are not to
    fit, all in one zone, of which the largest has room for 12 of them."""
    size = size or (12 if fits else 14)
    made: list[Any] = [pod_group(name).gang(size).priority(priority)]
    for i in range(size):
        kind = ("lead", "work", "load")[i % 3]
        one = pod(f"{name}-{i}").cpu(2 - i % 3 if i % 3 < 2 else 1).group(name).priority(priority)
        one = one.label("app", name).label("kind", kind).spread("rack", {"app": name})
        if kind == "lead":
            one = one.anti_affinity("kubernetes.io/hostname", {"kind": "lead"})
        made.append(one if fits else one.affinity(ZONE, {"app": name}))
    return made


def one_step(run: Cluster) -> list[d.Decision]:
    """One step of the engine, carried out."""
    out = run.engine.step(run.now, 64)
    run.engine.validate()
    for decision in out:
        run.perform(decision)
    return out


def place_of(run: Cluster, key: str = "podgroup/default/hard") -> QueueName:
    root = run.engine.queue.units.get(key)
    return root.queue_name if root is not None else QueueName.NOWHERE


def begun(run: Cluster) -> None:
    """The hard root is under way, and not decided."""
    one_step(run)
    assert place_of(run) is QueueName.SEARCH


def rest(run: Cluster, most: int = 3_000) -> int:
    """Step until nothing is left to do; returns the number of steps."""
    for number in range(most):
        out = one_step(run)
        due = run.engine.next_wake()
        if not out and (due is None or due > run.now):
            return number
    raise AssertionError("the engine does not come to rest")


# ---- others in between


def test_the_list_of_pending_units_says_that_a_search_goes_on() -> None:
    run = cluster(sliced()).see(*hard(fits=False))
    begun(run)
    unit = run.engine.queue.units["podgroup/default/hard"]
    reason = PendingReasons(run.engine).of(unit)
    assert (reason.reason, reason.words) == ("Searching", "being searched")
    assert reason.headline == "The search for a placement continues; other units are served in between"


def test_easy_pods_are_placed_while_a_hard_gang_is_searched_for() -> None:
    run = cluster(sliced())
    run.see(node("spare").cpu("64"), *hard(fits=False))  # of no rack: nothing for the gang
    begun(run)
    for i in range(20):
        run.see(pod(f"easy-{i}").cpu("100m"))
        one_step(run)
        assert f"easy-{i}" in run.bound, "each in the very next step"
        assert place_of(run) is QueueName.SEARCH
    rest(run)
    assert place_of(run) is QueueName.WAITING
    assert not any(name.startswith("hard") for name in run.bound)


def test_gangs_are_placed_in_between_too() -> None:
    run = cluster(sliced())
    run.see(*hard(fits=False))
    begun(run)
    run.see(pod_group("easy").gang(3), *(pod(f"easy-{i}").cpu("100m").group("easy") for i in range(3)))
    one_step(run)
    assert {f"easy-{i}" for i in range(3)} <= run.bound.keys()
    assert place_of(run) is QueueName.SEARCH


def test_two_hard_roots_take_turns() -> None:
    run = cluster(sliced())
    run.see(*hard("hard", fits=False), *hard("heavy", 15, fits=False))
    begun(run)
    for _ in range(10):
        one_step(run)
    slices = [run.engine.searches.slices(f"podgroup/default/{name}") for name in ("hard", "heavy")]
    assert min(slices) >= 4, "neither holds up the other"
    rest(run)
    assert {place_of(run, f"podgroup/default/{name}") for name in ("hard", "heavy")} == {QueueName.WAITING}


def test_too_many_unfinished_searches_wait_for_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sliced_attempts, "MAX_UNFINISHED", 2)
    run = cluster(sliced(budget=400))
    for number in range(5):
        run.see(*hard(f"hard{number}", 14 + number % 3, fits=False, priority=number))
    for _ in range(5):
        one_step(run)
        assert len(run.engine.searches.unfinished) <= 2
    rest(run)
    assert not run.engine.searches.unfinished
    assert {place_of(run, f"podgroup/default/hard{i}") for i in range(5)} == {QueueName.WAITING}


def test_gangs_that_are_alike_wait_for_the_one_that_is_being_searched_for() -> None:
    run = cluster(Engine(EngineSettings(search_slice=1)))
    shapes = ("1500m", "1300m", "1100m", "900m")
    for gang in ("a", "b", "c"):
        run.see(pod_group(gang).gang(16))
        run.see(*(pod(f"{gang}-{i}").cpu(shapes[i % 4]).group(gang) for i in range(16)))
    one_step(run)
    assert len(run.engine.searches.unfinished) == 1, "one search for all of them"
    rest(run)
    announced = {name for name in ("a", "b", "c") if place_of(run, f"podgroup/default/{name}") is QueueName.WAITING}
    placed = {name for name in ("a", "b", "c") if f"{name}-0" in run.bound}
    assert len(placed) == 1 and announced == {"a", "b", "c"} - placed
    for name in announced:
        assert run.engine.groups.failure(f"podgroup/default/{name}") is not None


# ---- the same answer


@pytest.mark.parametrize("work", [1, 25, 200])
def test_in_slices_the_answer_is_the_same(work: int) -> None:
    """Where nothing happens in between: pods of random gangs that are tied to each other in random ways."""
    for seed in range(40):
        case = case_of(seed)
        whole, pieces = (case.binds(Engine(EngineSettings(search_slice=each))) for each in (0, work))
        assert whole == pieces, f"seed {seed}"


def evicting(engine: Engine) -> Cluster:
    run = Cluster(engine)
    for i in range(10):
        run.see(node(f"n{i}").cpu("8").label("rack", f"r{i // 2}"))
        run.see(*(pod(f"low-{i}-{j}").cpu(1 + (i + j) % 3).priority((i * j) % 3).node(f"n{i}") for j in range(4)))
    run.see(pod_group("high").gang(6).priority(9).topology("rack"))
    return run.see(*(pod(f"high-{i}").cpu(2 + i % 2).priority(9).group("high") for i in range(6)))


@pytest.mark.parametrize("work", [1, 40])
def test_victims_are_the_same_in_slices(work: int) -> None:
    def announced(slice_: int) -> tuple[list[str], dict[str, str]]:
        run = evicting(Engine(EngineSettings(search_slice=slice_)))
        run.step()
        return [x.name for x in run.log if isinstance(x, d.Evict)], run.bound

    whole = announced(0)
    assert whole[0] and announced(work) == whole


# ---- what happens meanwhile


def test_room_that_others_took_is_not_promised_twice() -> None:
    """Every node is filled between two slices: whatever the search has found by then, no node is over-committed."""
    for stop in range(1, 30, 3):
        run = cluster(sliced(20))
        run.see(*hard())
        for _ in range(stop):
            one_step(run)
        if place_of(run) is not QueueName.SEARCH:
            break
        run.see(*(pod(f"full-{i}").cpu(2 + i % 3).node(f"n{i}") for i in range(12)))
        rest(run)  # validates itself after every step
        assert not any(name.startswith("hard") for name in run.bound)
        assert place_of(run) is QueueName.WAITING
        for i in range(12):
            run.gone("Pod", f"full-{i}")
        rest(run)
        assert sum(name.startswith("hard") for name in run.bound) == 12
    else:
        return
    assert stop > 1, "it was never interrupted"


def test_room_that_comes_back_meanwhile_wakes_a_gang_that_is_refused_in_the_end() -> None:
    run = cluster(sliced())
    run.see(*(pod(f"full-{i}").cpu(2 + i % 3).node(f"n{i}") for i in range(3)))
    run.see(*hard(size=14, fits=True))
    one_step(run)
    steps = 0
    while place_of(run) is QueueName.SEARCH and steps < 3:
        one_step(run)
        steps += 1
    for i in range(3):
        run.gone("Pod", f"full-{i}")
    rest(run)
    assert sum(name.startswith("hard") for name in run.bound) == 14


def test_a_member_that_goes_meanwhile_ends_the_search() -> None:
    run = cluster(sliced())
    run.see(*hard(fits=False))
    begun(run)
    run.gone("Pod", "hard-3")
    one_step(run)
    assert not run.engine.searches.unfinished
    assert place_of(run) is QueueName.GATED
    rest(run)
    assert not run.bound


def test_a_smaller_minimum_meanwhile_is_what_counts() -> None:
    run = cluster(sliced())
    run.see(*hard(fits=False))
    begun(run)
    run.see(pod_group("hard").gang(2))
    rest(run)
    assert sum(name.startswith("hard") for name in run.bound) >= 2


def test_a_node_that_comes_meanwhile_is_used() -> None:
    run = cluster(sliced())
    run.see(*hard(fits=False))
    begun(run)
    zone = [node(f"new-{i}").cpu("9").zone("z0").label("rack", f"r{i}") for i in range(4)]
    run.see(*zone)
    rest(run)
    assert sum(name.startswith("hard") for name in run.bound) == 14


def test_a_node_that_goes_meanwhile_is_not_used() -> None:
    run = cluster(sliced(10))
    run.see(*hard())
    gone = set()
    for number in range(4):
        one_step(run)
        if place_of(run) is QueueName.SEARCH:
            run.gone("Node", f"n{number}")
            gone.add(f"n{number}")
    rest(run)
    assert gone and not gone & set(run.bound.values())


def test_a_search_disturbed_too_often_waits_for_no_other_of_its_rank_any_more() -> None:
    run = cluster(sliced())
    run.see(*hard(fits=False, priority=5))
    begun(run)
    (search,) = run.engine.searches.unfinished.values()
    search.restarts = sliced_attempts.MAX_SEARCHES  # as if its answers had not stood
    run.see(pod("low").cpu("100m"), pod("same").cpu("100m").priority(5), pod("high").cpu("100m").priority(6))
    one_step(run)
    assert place_of(run) is QueueName.SEARCH
    assert "high" in run.bound and not {"low", "same"} & run.bound.keys()
    rest(run)
    assert {"low", "same", "high"} <= run.bound.keys(), "after it was decided"


def test_a_plan_whose_seats_were_nibbled_at_is_carried_out_with_others() -> None:
    """Small pods come between the slices, and stand where a member was to go: same victims, other seats, or a new plan;
    in the end the gang is there."""
    run = evicting(Engine(EngineSettings(search_slice=15)))
    for number in range(60):
        one_step(run)
        if place_of(run, "podgroup/default/high") is not QueueName.SEARCH:
            break
        run.see(pod(f"small-{number}").cpu("200m"))
    assert number > 2
    rest(run)
    assert sum(name.startswith("high") for name in run.bound) == 6


def test_a_search_that_is_disturbed_for_ever_is_decided_in_a_hurry() -> None:
    """Another pod takes a seat that the search counts on, before every one of its slices."""
    run = cluster(sliced(20, budget=2_000))
    run.see(*hard(fits=False))
    begun(run)
    for number in range(400):
        if place_of(run) is not QueueName.SEARCH:
            break
        run.see(pod(f"busy-{number}").cpu("100m").node(f"n{number % 12}"))
        if number >= 6:
            run.gone("Pod", f"busy-{number - 6}")
        one_step(run)
    assert place_of(run) is not QueueName.SEARCH
    rest(run)
    assert not any(name.startswith("hard") for name in run.bound)


def test_victims_that_went_meanwhile_are_not_evicted() -> None:
    for stop in range(1, 40, 4):
        run = evicting(Engine(EngineSettings(search_slice=10)))
        for _ in range(stop):
            one_step(run)
        if place_of(run, "podgroup/default/high") is not QueueName.SEARCH:
            break
        for i in range(10):
            run.gone("Pod", f"low-{i}-0")
        rest(run)
        evicted = {x.name for x in run.log if isinstance(x, d.Evict)}
        assert not evicted & {f"low-{i}-0" for i in range(10)}
        assert sum(name.startswith("high") for name in run.bound) == 6
    assert stop > 1, "it was never interrupted"


def test_room_that_comes_while_victims_are_chosen_spares_them() -> None:
    for stop in range(1, 40, 4):
        run = evicting(Engine(EngineSettings(search_slice=10)))
        for _ in range(stop):
            one_step(run)
        if place_of(run, "podgroup/default/high") is not QueueName.SEARCH:
            break
        for i, j in itertools.product((6, 7), range(4)):  # the nodes of a rack
            run.gone("Pod", f"low-{i}-{j}")
        rest(run)
        assert not [x.name for x in run.log if isinstance(x, d.Evict)]
        assert {run.bound[name] for name in run.bound if name.startswith("high")} == {"n6", "n7"}
    assert stop > 1, "it was never interrupted"


# ---- what users read


def test_why_says_that_the_search_goes_on() -> None:
    run = cluster(sliced())
    run.see(*hard(fits=False))
    begun(run)
    one_step(run)
    for kind, name in (("PodGroup", "hard"), ("Pod", "hard-0")):
        item = why(run.engine, kind, "default", name).items[0]
        assert item.queue.place == "search"
        assert "the search for a placement continues" in item.summary
        assert any(line.what == "searching" for line in item.story)
    assert place_of(run) is QueueName.SEARCH, "asking changes nothing"
    rest(run)
    assert "the search for a place" not in why(run.engine, "Pod", "default", "hard-0").items[0].summary


def test_an_engine_may_be_thrown_away_in_the_middle() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = cluster(sliced())
        run.see(*hard(fits=False))
        begun(run)
        del run
        gc.collect()
