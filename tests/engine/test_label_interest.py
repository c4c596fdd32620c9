"""Pods share a shape unless a selector can tell them apart, whenever that selector comes, and verdicts stay right."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phalanx.engine.explain import Question, whatif
from phalanx.engine.state.label_interest import OTHER, LabelInterest
from phalanx.testing import Cluster
from phalanx.testing import builders as b
from support.differential import World, change, place, renamed
from support.strategies import KEYS, NAMES, calm_nodes, maybe
from support.verdicts import binds

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
LWS = "leaderworkerset.sigs.k8s.io/"


def leader_worker_set(run: Cluster, name: str, size: int = 8) -> None:
    """One replica, as the controller makes it: Service, StatefulSets of leaders and workers, pods."""
    mine = {f"{LWS}name": name, f"{LWS}group-key": f"key-{name}"}
    run.see(b.service(name).select({f"{LWS}name": name}))
    run.see(b.stateful_set(name).select({f"{LWS}name": name, f"{LWS}worker-index": "0"}))
    run.see(b.stateful_set(f"{name}-0").select(mine))
    for i in range(size):
        pod = b.pod(f"{name}-0-{i}").cpu("1").labels(mine).owner("StatefulSet", f"{name}-0" if i else name)
        run.see(pod.label(f"{LWS}worker-index", str(i)).label("apps.kubernetes.io/pod-index", str(i)))


def test_the_workers_of_a_leader_worker_set_share_a_shape() -> None:
    run = Cluster().see(*(b.node(f"n{i}").cpu("8") for i in range(4)))
    for name in ("a", "b", "c"):
        leader_worker_set(run, name)
    assert len(run.engine.shapes) == 2 * 3
    assert len(binds(run.step())) == 24


def test_another_set_with_names_of_its_own_disturbs_no_pod() -> None:
    run = Cluster().see(*(b.node(f"n{i}").cpu("8") for i in range(4)))
    leader_worker_set(run, "a")
    run.step()
    before = run.engine.interest.epoch
    leader_worker_set(run, "b")
    assert run.engine.interest.epoch == before


def test_a_service_that_comes_after_its_pods_counts_them() -> None:
    """No selector asked for `role: b`, so these pods were like any others with a role."""
    world = World()
    for i in range(3):
        world.see(b.node(f"n{i}").zone(f"z{i}").build())
    world.see(b.service("a").select({"role": "a"}).build())
    world.see(b.pod("p0").label("role", "b").node("n0").build())
    world.see(b.pod("p1").label("role", "c").node("n1").build())
    one, other = b.pod("x").label("role", "b").build(), b.pod("y").label("role", "d").build()
    assert world.engine.shapes.of(one) is world.engine.shapes.of(other)
    world.check(one)
    world.see(b.service("b").select({"role": "b"}).build())
    assert world.engine.shapes.of(one) is not world.engine.shapes.of(other)
    world.check(one)
    world.check(other)
    world.gone(b.pod("p0").build())
    world.check(one)


def test_every_pod_that_shares_a_shape_is_found_when_its_label_is_mentioned() -> None:
    """Also those that were recognised quickly."""
    run = Cluster().see(b.service("a").select({"role": "a"}))
    shapes, interest = run.engine.shapes, run.engine.interest
    assert shapes.of(b.pod("p0").label("role", "b").build()) is shapes.of(b.pod("p1").label("role", "c").build())
    assert interest.learn({"role": {"c"}})


def roles() -> World:
    world = World()
    for i in range(3):
        world.see(b.node(f"n{i}").zone(f"z{i}").build())
    world.see(b.service("a").select({"role": "a"}).build())
    world.see(b.pod("p0").label("role", "c").node("n1").build())
    return world


def test_pods_looked_at_again_for_one_label_are_found_by_the_next() -> None:
    world = roles()
    world.check(b.pod("y").build())
    world.see(b.service("b").select({"team": "x"}).build())  # an unknown key: all classes are made again
    world.check(b.pod("y").build())
    world.see(b.service("c").select({"role": "c"}).build())
    world.check(b.pod("x").label("role", "c").build())


def test_pods_of_a_question_leave_the_counts_as_they_were() -> None:
    world = roles()
    world.check(b.pod("y").build())
    asked = [b.pod(name).label("role", "q").anti_affinity(HOST, {"role": "q"}).build() for name in ("q0", "q1")]
    assert whatif(world.engine, Question(pods=asked)).fits
    world.check(b.pod("x").label("role", "z").spread(ZONE, [("role", "Exists", [])]).build())
    world.check(b.pod("x").label("role", "q").affinity(HOST, {"role": "q"}).build())


def test_a_selector_that_changes_is_followed() -> None:
    world = roles()
    pod = b.pod("x").label("role", "c").build()
    for role in ("c", "a", "c"):
        world.see(b.service("a").select({"role": role}).build())
        world.check(pod)
    owned = b.pod("y").label("role", "c").owner("StatefulSet", "s").build()
    for selector in ({"role": "a"}, {"role": "c"}, [("role", "NotIn", ["c"])]):
        world.see(b.stateful_set("s").select(selector).build())
        world.check(owned)


def test_a_waiting_pod_is_looked_at_again_when_another_pod_avoids_it() -> None:
    run = Cluster().see(b.node("n0").cpu("4"), b.service("s").select({"role": "a"}))
    run.see(b.pod("late").cpu("5").label("role", "b"))
    assert not binds(run.step())
    run.see(b.pod("guard").cpu("1").node("n0").anti_affinity(HOST, {"role": "b"}))
    run.see(b.node("n0").cpu("16"))
    assert not binds(run.step(60))
    assert "didn't satisfy existing pods anti-affinity rules" in run.messages("late")[-1]
    run.gone("Pod", "guard")
    assert binds(run.step(60)) == {"late": "n0"}


def test_a_key_that_pods_compare_with_their_own_value_is_kept_whole() -> None:
    """matchLabelKeys: two revisions of one app are spread each for itself, though no selector names a revision."""
    world = World()
    for i in range(2):
        world.see(b.node(f"n{i}").zone(f"z{i}").build())
    for i, revision in enumerate("112"):
        world.see(b.pod(f"p{i}").label("app", "w").label("rev", revision).node("n0").build())
    for revision in "123":
        pod = b.pod("x").label("app", "w").label("rev", revision)
        world.check(pod.spread(ZONE, {"app": "w"}, match_label_keys=["rev"]).build())


def test_values_are_hidden_until_mentioned() -> None:
    interest = LabelInterest()
    assert interest.learn({"role": {"a"}})
    assert interest.seen({"role": "b", "x": "y"}) == {"role": OTHER}
    assert not interest.learn({"role": {"c"}})  # no lookup went past it
    assert interest.learn({"role": {"b"}})
    assert interest.seen({"role": "b"}) == {"role": "b"}
    assert not interest.learn({"role": {"a", "b", "c"}})


def test_a_plugin_that_reads_label_values_by_itself_gets_them() -> None:
    interest = LabelInterest()
    interest.learn({"role": {"a"}})
    interest.seen({"role": "b"})
    assert interest.add(["role"])
    assert interest.seen({"role": "b"}) == {"role": "b"}
    assert not interest.learn({"role": {"c"}})


def test_a_key_whose_values_are_always_mentioned_too_late_is_kept_whole() -> None:
    """Every new epoch is paid for by all placed pods, so there must be few of them."""
    interest = LabelInterest()
    interest.learn({"job": {"first"}})
    for i in range(100):
        interest.seen({"job": f"j{i}"})
        interest.learn({"job": {f"j{i}"}})
    assert interest.epoch < 12
    assert interest.seen({"job": "new"}) == {"job": "new"}


@pytest.mark.parametrize("many", [9_000, 30_000])
def test_what_is_remembered_stays_bounded_and_right(many: int) -> None:
    interest = LabelInterest()
    interest.learn({"named": {"a"}, "had": {"a"}})
    for i in range(many):
        interest.learn({"named": {f"v{i}"}})
        interest.seen({"had": f"v{i}"})
    values, hidden, _, _, epoch = interest.state()
    named = values["named"]
    assert named is None or len(named) <= 10_000
    assert len(hidden["had"]) <= 20_000
    assert interest.learn({"had": {f"v{many - 1}"}})  # seen as OTHER, remembered or not
    assert interest.epoch == epoch + 1


# ---- many values, few of them mentioned, selectors that come and go before and after the pods they select

INDEX = st.sampled_from(["0", "1", "2", "3", "4"])
chosen: st.SearchStrategy[Any] = st.one_of(
    INDEX.map(lambda i: {"index": i}),
    st.tuples(st.sampled_from(["web", "db"]), INDEX).map(lambda pair: {"app": pair[0], "index": pair[1]}),
    st.lists(INDEX, min_size=1, max_size=2).map(lambda some: [("index", "In", some)]),
    st.lists(INDEX, min_size=1, max_size=2).map(lambda some: [("index", "NotIn", some)]),
    st.sampled_from([[("index", "Exists", [])], [("index", "DoesNotExist", [])], {"app": "web"}]),
)


@st.composite
def indexed(draw: st.DrawFn, name: str) -> b.PodBuilder:
    made = b.pod(name).label("app", draw(st.sampled_from(["web", "db"])))
    if draw(st.integers(0, 5)):
        made.label("index", draw(INDEX))
    own = draw(st.sampled_from([(), (), ("index",)]))
    match draw(st.integers(0, 7)):
        case 0:
            made.spread(draw(KEYS), draw(chosen), soft=draw(maybe), match_label_keys=own)
        case 1:
            made.spread(ZONE, draw(chosen), soft=draw(maybe)).spread(HOST, draw(chosen), soft=draw(maybe))
        case 2:
            made.affinity(draw(KEYS), draw(chosen), weight=draw(st.sampled_from([None, 10])), match_label_keys=own)
        case 3:
            made.anti_affinity(draw(KEYS), draw(chosen), weight=draw(st.sampled_from([None, 7])))
        case 4:
            made.anti_affinity(draw(KEYS), {"app": "web"}, mismatch_label_keys=("index",))
    if draw(maybe):
        version, kind = draw(
            st.sampled_from([("apps/v1", "ReplicaSet"), ("apps/v1", "StatefulSet"), ("v1", "ReplicationController")])
        )
        made.owner(kind, draw(st.sampled_from(["o1", "o2"])), api_version=version)
    return made


@st.composite
def choosers(draw: st.DrawFn) -> Any:
    kind = draw(st.sampled_from([b.service, b.replication_controller, b.replica_set, b.stateful_set]))
    made: Any = kind(draw(st.sampled_from(["o1", "o2", "o3"])))
    if kind in (b.service, b.replication_controller):
        return made.select(
            draw(st.sampled_from([{"index": "0"}, {"index": "3"}, {"app": "web", "index": "1"}]))
        ).build()
    return made.select(draw(chosen)).build()


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_verdicts_do_not_depend_on_when_selectors_come(data: st.DataObject) -> None:
    world = World()
    for i in range(data.draw(st.integers(2, 4), label="nodes")):
        world.see(renamed(data.draw(calm_nodes()), NAMES[i]))
    for thing in data.draw(st.lists(choosers(), max_size=1), label="objects"):
        world.see(thing)
    for i in range(data.draw(st.integers(0, 5), label="placed")):
        place(data, world, indexed, f"p{i}")
    candidates = [data.draw(indexed(name)).build() for name in ("x", "y")]
    for candidate in candidates:
        world.check(candidate)
        world.see(candidate)
    for i in range(data.draw(st.integers(1, 8), label="changes")):
        if data.draw(st.integers(0, 3), label="question") == 0:
            known = world.engine.interest.known()
            whatif(world.engine, Question(pods=[data.draw(indexed(f"q{i}")).build()]))
            assert world.engine.interest.known() == known
        else:
            change(data, world, indexed, choosers(), calm_nodes())
        world.check(data.draw(st.sampled_from(candidates)))
    for candidate in candidates:
        world.check(candidate)
