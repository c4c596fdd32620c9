"""Affinity between pods as a user sees it."""

from __future__ import annotations

from phalanx.engine.engine import Engine
from phalanx.engine.framework.settings import EngineSettings, ProfileSettings
from phalanx.testing import Cluster
from phalanx.testing.builders import namespace, node, pod
from support.verdicts import binds, no_victims, not_helpful

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"


def two_zones() -> Cluster:
    return Cluster().see(*(node(f"z{z}-{i}").zone(f"z{z}") for z in range(2) for i in range(2)))


def test_pods_that_keep_apart_take_a_node_each_and_the_rest_waits():
    run = two_zones()
    run.see(*(pod(f"p{i}").label("app", "db").anti_affinity(HOST, {"app": "db"}) for i in range(5)))
    placed = binds(run.step())
    assert sorted(placed.values()) == ["z0-0", "z0-1", "z1-0", "z1-1"]
    waiting = next(f"p{i}" for i in range(5) if f"p{i}" not in placed)
    assert run.messages(waiting) == [
        no_victims("0/4 nodes are available: 4 node(s) didn't match pod anti-affinity rules.")
    ]
    run.gone("Pod", "p0")
    assert binds(run.step(60)) == {waiting: placed["p0"]}


def test_the_rules_of_running_pods_hold_against_newcomers():
    run = two_zones().see(pod("alone").node("z0-0").anti_affinity(ZONE, {"app": "noisy"}))
    run.see(pod("p").label("app", "noisy"))
    assert binds(run.step())["p"].startswith("z1")
    run.see(pod("alone2").node("z1-0").anti_affinity(ZONE, {"app": "noisy"}), pod("q").label("app", "noisy"))
    assert binds(run.step()) == {}
    assert run.messages("q") == [
        no_victims("0/4 nodes are available: 4 node(s) didn't satisfy existing pods anti-affinity rules.")
    ]


def test_the_first_of_a_group_that_wants_to_be_together_may_start_anywhere():
    run = two_zones()
    run.see(*(pod(f"p{i}").label("app", "web").affinity(ZONE, {"app": "web"}) for i in range(6)))
    zones = {where.split("-")[0] for where in binds(run.step()).values()}
    assert len(zones) == 1


def test_a_pod_waits_for_the_one_it_wants_to_be_near():
    run = two_zones().see(pod("p").affinity(ZONE, {"app": "cache"}))
    assert binds(run.step()) == {}
    assert run.messages("p") == [not_helpful("0/4 nodes are available: 4 node(s) didn't match pod affinity rules.")]
    run.see(pod("cache").label("app", "cache").node("z1-1"))
    assert binds(run.step(60))["p"].startswith("z1")


def test_one_pod_must_match_all_terms():
    run = two_zones().see(pod("a").label("app", "x").node("z0-0"), pod("b").label("tier", "y").node("z0-0"))
    run.see(pod("p").affinity(ZONE, {"app": "x"}).affinity(HOST, {"tier": "y"}))
    assert binds(run.step()) == {}
    run.see(pod("c").label("app", "x").label("tier", "y").node("z1-0"))
    assert binds(run.step(60)) == {"p": "z1-0"}


def test_namespaces_are_chosen_by_name_or_by_label():
    run = two_zones().see(namespace("a").label("team", "blue"), namespace("b"))
    run.see(pod("ta").ns("a").label("app", "x").node("z0-0"), pod("tb").ns("b").label("app", "x").node("z1-0"))
    run.see(pod("here").affinity(HOST, {"app": "x"}))
    run.see(pod("named").affinity(HOST, {"app": "x"}, namespaces=["b"]))
    run.see(pod("blue").affinity(HOST, {"app": "x"}, namespace_selector={"team": "blue"}))
    assert binds(run.step()) == {"named": "z1-0", "blue": "z0-0"}
    run.see(namespace("a"), namespace("b").label("team", "blue"))
    run.see(pod("blue2").affinity(HOST, {"app": "x"}, namespace_selector={"team": "blue"}))
    assert binds(run.step(60)) == {"blue2": "z1-0"}


def test_a_rollout_keeps_apart_from_its_own_version_only():
    run = Cluster().see(node("n0"), node("n1"))
    for version in ("v1", "v2"):
        run.see(
            *(
                pod(f"{version}-{i}")
                .label("app", "web")
                .label("hash", version)
                .anti_affinity(HOST, {"app": "web"}, match_label_keys=["hash"])
                for i in range(2)
            )
        )
        assert sorted(binds(run.step()).values()) == ["n0", "n1"]


def test_a_tenant_gets_nodes_of_its_own_by_mismatch():
    run = Cluster().see(node("n0"), node("n1"))
    for tenant in ("red", "blue", "red", "blue"):
        run.see(
            pod(f"{tenant}-{len(run.pods)}")
            .label("tenant", tenant)
            .anti_affinity(HOST, [("tenant", "Exists", [])], mismatch_label_keys=["tenant"])
        )
        run.step()
    assert {name.split("-")[0]: where for name, where in run.bound.items()} in (
        {"red": "n0", "blue": "n1"},
        {"red": "n1", "blue": "n0"},
    )
    assert len(run.bound) == 4


def test_preferences_pull_and_push():
    run = two_zones().see(pod("cache").label("app", "cache").node("z1-0"))
    run.see(pod("near").affinity(HOST, {"app": "cache"}, weight=100))
    assert binds(run.step()) == {"near": "z1-0"}
    run.see(pod("far").anti_affinity(ZONE, {"app": "cache"}, weight=100))
    assert binds(run.step())["far"].startswith("z0")


def test_what_running_pods_wish_counts_too_unless_switched_off():
    for ignore, expected in ((False, "z1-1"), (True, "z0-0")):
        args = {"InterPodAffinity": {"ignorePreferredTermsOfExistingPods": ignore}}
        run = Cluster(Engine(EngineSettings(profiles=(ProfileSettings(args=args),))))
        run.see(*(node(f"z{z}-{i}").zone(f"z{z}") for z in range(2) for i in range(2)))
        run.see(pod("host").node("z1-1").affinity(HOST, {"app": "guest"}, weight=100))
        run.see(pod("p").label("app", "guest"))
        assert binds(run.step()) == {"p": expected}


def test_a_label_that_changes_on_a_running_pod_frees_others():
    run = Cluster().see(node("n0"), pod("a").label("app", "noisy").node("n0"))
    run.see(pod("p").anti_affinity(HOST, {"app": "noisy"}))
    assert binds(run.step()) == {}
    run.see(pod("a").label("app", "quiet").node("n0"))
    assert binds(run.step(60)) == {"p": "n0"}
