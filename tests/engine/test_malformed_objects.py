"""No object can stop the engine: one that cannot be handled is set aside and reported, and all others are scheduled."""

from __future__ import annotations

import random
from typing import Any

import pytest

from phalanx.engine import decisions as d
from phalanx.engine.events import CHANGED_BY_KIND
from phalanx.engine.scheduling.lifecycle.isolation import Isolation
from phalanx.engine.state.shapes import ShapeTable
from phalanx.model.groups import TO_COME, hierarchy
from phalanx.model.groups.forest import GroupForest
from phalanx.model.groups.links import GroupLinks
from phalanx.testing import Cluster
from phalanx.testing.builders import composite, node, pod, pod_group
from support.malformed_objects import KINDS, announcement, malformed

ROUNDS = 12  # objects of each kind in one run


@pytest.fixture
def lenient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Isolation, "strict", False)


def a_cluster() -> Cluster:
    run = Cluster().see(*(node(f"n{i}").cpu("8").label("zone", f"z{i}") for i in range(2)))
    run.see(pod("running").cpu("1").node("n0")).step()
    return run


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", KINDS)
def test_no_field_of_any_kind_raises(kind: str, seed: int) -> None:
    """Without isolation: what a user can write is handled, not only survived."""
    rng = random.Random(f"{kind} {seed}")
    run = a_cluster()
    for number in range(ROUNDS):
        obj = malformed(rng, kind)
        if obj is None:
            continue
        run.engine.apply(CHANGED_BY_KIND[kind](obj))  # type: ignore[call-arg]
        run.see(pod(f"canary-{number}").cpu("10m").priority(100)).step(1)
        run.engine.validate()
        if kind != "Node":
            assert f"canary-{number}" in run.placed
        if rng.random() < 0.3:
            run.gone(kind, "malformed").step(1)
    run.step(60)
    run.engine.validate()


@pytest.mark.parametrize("seed", range(10))
def test_no_mixture_of_kinds_raises(seed: int) -> None:
    """Groups that announce pods, with malformed objects of all kinds between them, and a restart among all of it."""
    rng = random.Random(f"mixture {seed}")
    run = a_cluster()
    for number in range(25):
        kind = rng.choice([*(each for each in KINDS if each != "Node"), "Pod", "Pod", "PodGroup", "PodGroup"])
        obj = malformed(rng, kind)
        if obj is not None:
            run.engine.apply(CHANGED_BY_KIND[kind](obj))  # type: ignore[call-arg]
        if rng.random() < 0.3:
            group = pod_group(f"g{number}").gang(rng.choice((1, 2))).annotate(TO_COME, announcement(rng))
            group.written_by("phalanx-controllers", TO_COME)
            run.see(group, pod(f"g{number}-0").group(f"g{number}").cpu("100m"))
        run.see(pod(f"canary-{number}").cpu("10m").priority(100)).step(1)
        run.engine.validate()
        assert f"canary-{number}" in run.placed
    run.restart()
    run.step(60)
    run.engine.validate()


def test_a_long_chain_of_composites_costs_each_event_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Longest first: every new parent concerns all below it, and only a few levels of them are looked at."""
    run = a_cluster()
    looked: list[str] = []
    real = hierarchy.check

    def check(groups: Any, group: Any, templates: Any) -> Any:
        looked.append(group.key.name)
        return real(groups, group, templates)

    monkeypatch.setattr(hierarchy, "check", check)
    for number in range(200):
        link = composite(f"c{number}").gang(1).parent(f"c{number + 1}").build()
        run.engine.apply(CHANGED_BY_KIND["CompositePodGroup"](link))  # type: ignore[call-arg]
    run.see(pod("canary").cpu("1")).step()
    assert "canary" in run.placed and len(looked) < 200 * 10


def fails_on(name: str, real: Any, get: Any) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if name in get(*args):
            raise RuntimeError("a mistake of ours")
        return real(self, *args, **kwargs)

    return call


@pytest.mark.usefixtures("lenient")
def test_a_pod_that_cannot_be_handled_is_set_aside_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ShapeTable.of
    monkeypatch.setattr(ShapeTable, "of", fails_on("bad", real, lambda pod: pod.metadata.name))
    run = a_cluster().see(pod_group("g").gang(1), pod("bad").group("g").cpu("1"), pod("good").cpu("1"))
    run.step()
    assert run.placed == {"running": "n0", "good": run.placed["good"]}
    assert list(run.engine.isolation.objects) == [("Pod", "default", "bad")]
    (condition,) = [each for each in run.log if isinstance(each, d.SetPodCondition) and each.name == "bad"]
    assert condition.reason == "SchedulerError" and "a mistake of ours" in condition.message
    run.see(run.pods["bad"]).step()
    assert sum(isinstance(each, d.SetPodCondition) and each.name == "bad" for each in run.log) == 1, "said once"
    run.engine.validate()
    monkeypatch.setattr(ShapeTable, "of", real)
    run.see(run.pods["bad"]).step()
    assert "bad" in run.placed and not run.engine.isolation.objects


@pytest.mark.usefixtures("lenient")
def test_a_bound_pod_that_cannot_be_handled_keeps_its_room(monkeypatch: pytest.MonkeyPatch) -> None:
    real = ShapeTable.of
    monkeypatch.setattr(
        ShapeTable, "of", fails_on("bad", real, lambda pod: pod.metadata.name if pod.metadata.labels else "")
    )
    run = a_cluster().see(pod("bad").cpu("7").node("n1").label("a", "b"))
    run.see(pod("large").cpu("8")).step()
    assert "large" not in run.placed
    run.gone("Pod", "bad").step()
    assert "large" in run.placed and not run.engine.isolation.objects


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize(
    ("part", "method"), [(GroupForest, "_expect"), (GroupLinks, "update_ancestors"), (GroupForest, "_gate")]
)
def test_a_group_that_cannot_be_handled_is_as_if_it_were_not_there(
    monkeypatch: pytest.MonkeyPatch, part: type[Any], method: str
) -> None:
    real = getattr(part, method)
    monkeypatch.setattr(
        part,
        method,
        fails_on("bad", real, lambda g, *_: g.uid if method == "_gate" else g.source and g.key.name),
    )
    run = a_cluster().see(composite("c").gang(1))
    run.see(pod_group("bad").uid("bad").gang(1).parent("c"), pod("p").group("bad").cpu("1"), pod("good").cpu("1"))
    run.step()
    assert "good" in run.placed
    run.engine.validate()
    monkeypatch.setattr(part, method, real)
    run.see(run.objects["PodGroup"]["bad"]).step()
    assert "p" in run.placed


@pytest.mark.usefixtures("lenient")
@pytest.mark.parametrize("group", [False, True])
def test_a_unit_whose_attempt_raises_is_tried_again_and_others_are_scheduled(
    monkeypatch: pytest.MonkeyPatch, group: bool
) -> None:
    run = a_cluster()
    attempts = run.engine.attempts
    broken = [True]
    for name in ("place_by_counting", "attempt", "search"):
        real = getattr(attempts, name)

        def call(what: Any, *args: Any, real: Any = real, **kwargs: Any) -> Any:
            text = what.key
            if broken and "bad" in text:
                mark = run.engine.columns.journal.mark()
                assert mark
                raise RecursionError("deep")
            return real(what, *args, **kwargs)

        monkeypatch.setattr(attempts, name, call)
    if group:
        run.see(pod_group("bad").gang(2), *(pod(f"bad-{i}").group("bad").cpu("1") for i in range(2)))
    else:
        run.see(pod("bad-0").cpu("1"))
    run.see(pod("good").cpu("1")).step(5)
    assert "good" in run.placed and "bad-0" not in run.placed
    assert "RecursionError" in run.message("bad-0")
    run.engine.validate()
    broken.clear()
    run.step(60)
    assert "bad-0" in run.placed
    run.engine.validate()
