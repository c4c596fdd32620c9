"""How much a pod asks for."""

from __future__ import annotations

from phalanx.engine.state.requests import DEFAULT_CPU, DEFAULT_MEMORY, EXACT, offered, pod_request
from phalanx.testing.builders import pod


def asked(builder):
    return pod_request(builder.build()).amounts


def test_containers_add_up():
    assert asked(pod("p").container({"cpu": "1"}).container({"cpu": "250m", "memory": "1Gi"}))["cpu"] == 1250


def test_init_containers_count_by_their_peak():
    assert asked(pod("p").cpu("1").init({"cpu": "3"}).init({"cpu": "2"}))["cpu"] == 3000
    assert asked(pod("p").cpu("4").init({"cpu": "3"}))["cpu"] == 4000


def test_a_sidecar_runs_beside_containers_and_later_init_containers():
    both = pod("p").cpu("1").init({"cpu": "1"}, sidecar=True).init({"cpu": "2"})
    assert asked(both)["cpu"] == 3000
    assert asked(pod("p").cpu("1").init({"cpu": "2"}).init({"cpu": "1"}, sidecar=True))["cpu"] == 2000


def test_overhead_is_added_and_pod_level_replaces_the_sum():
    assert asked(pod("p").cpu("1").overhead(cpu="100m"))["cpu"] == 1100
    level = asked(pod("p").cpu("1").mem("1Gi").pod_level({"cpu": "3"}).overhead(cpu="100m"))
    assert level["cpu"] == 3100 and level["memory"] == 1024**3


def test_every_pod_takes_one_of_the_pods():
    assert asked(pod("p"))["pods"] == 1


def test_containers_that_ask_for_nothing_still_weigh_something_in_scores():
    request = pod_request(pod("p").cpu("1").container({}).build())
    assert request.nonzero == (1000 + DEFAULT_CPU, 2 * DEFAULT_MEMORY)
    assert request.amounts == {"cpu": 1000, "pods": 1}


def test_fractions_round_up():
    assert asked(pod("p").cpu("0.0001"))["cpu"] == 1
    assert asked(pod("p").mem("1500m"))["memory"] == 2


def test_nonsense_asks_for_more_than_any_node_has_and_offers_nothing():
    assert asked(pod("p").cpu("many"))["cpu"] == EXACT
    assert offered("cpu", "many") == 0
    assert offered("memory", "1000Ei") == EXACT
