"""Topology spreading as a user sees it: where pods go, and what is said when they cannot."""

from __future__ import annotations

import pytest

from phalanx.engine.engine import Engine
from phalanx.engine.framework.settings import EngineSettings, ProfileSettings
from phalanx.testing import Cluster
from phalanx.testing.builders import PodBuilder, node, pod, replica_set, replication_controller, service, stateful_set
from support.verdicts import binds, no_victims, not_helpful

ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"


def zones(*sizes: int) -> Cluster:
    run = Cluster()
    for z, size in enumerate(sizes):
        for i in range(size):
            run.see(node(f"z{z}-{i}").zone(f"z{z}"))
    return run


def web(name: str) -> PodBuilder:
    return pod(name).label("app", "web").cpu("1")


def by_zone(decisions: dict[str, str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for where in decisions.values():
        counts[where.split("-")[0]] = counts.get(where.split("-")[0], 0) + 1
    return counts


def test_pods_are_spread_over_zones_of_different_size():
    run = zones(1, 4)
    run.see(*(web(f"p{i}").spread(ZONE, {"app": "web"}) for i in range(8)))
    assert by_zone(binds(run.step())) == {"z0": 4, "z1": 4}


def test_a_full_zone_holds_the_rest_back_and_says_so():
    run = Cluster().see(node("z0-0").zone("z0").pods(1), node("z1-0").zone("z1"))
    run.see(*(web(f"p{i}").spread(ZONE, {"app": "web"}) for i in range(4)))
    assert by_zone(binds(run.step())) == {"z0": 1, "z1": 2}
    message = "0/2 nodes are available: 1 Too many pods, 1 node(s) didn't match pod topology spread constraints."
    assert run.messages("p3") == [no_victims(message)]
    run.see(node("z2-0").zone("z0"))
    assert binds(run.step(60)) == {"p3": "z2-0"}


def test_a_pod_that_leaves_makes_room_for_the_skew():
    run = Cluster().see(node("z0-0").zone("z0").pods(1), node("z1-0").zone("z1"))
    run.see(*(web(f"p{i}").spread(ZONE, {"app": "web"}) for i in range(4)))
    where = binds(run.step())
    waiting = next(name for name in ("p0", "p1", "p2", "p3") if name not in where)
    gone = next(name for name, node_name in where.items() if node_name == "z1-0")
    run.gone("Pod", gone)
    assert binds(run.step(60)) == {waiting: "z1-0"}


def test_nodes_without_the_label_are_no_place():
    run = Cluster().see(node("bare"))
    run.see(web("p").spread(ZONE, {"app": "web"}))
    assert binds(run.step()) == {}
    assert run.messages("p") == [
        not_helpful(
            "0/1 nodes are available: 1 node(s) didn't match pod topology spread constraints (missing required label)."
        )
    ]


def test_min_domains_keeps_pods_waiting_for_more_zones():
    run = zones(2)
    run.see(*(web(f"p{i}").spread(ZONE, {"app": "web"}, min_domains=2) for i in range(2)))
    assert len(binds(run.step())) == 1
    run.see(node("z1-0").zone("z1"))
    assert by_zone(binds(run.step(60))) == {"z1": 1}


def test_nodes_the_pod_cannot_use_do_not_count_unless_requested():
    for policy, expected in ((None, 3), ("Ignore", 1)):
        run = zones(1, 1)
        run.see(
            *(
                web(f"p{i}")
                .node_affinity((ZONE, "In", ["z0"]))
                .spread(ZONE, {"app": "web"}, node_affinity_policy=policy)
                for i in range(3)
            )
        )
        assert len(binds(run.step())) == expected


def test_tainted_nodes_count_unless_taints_are_honored():
    for policy, expected in ((None, 1), ("Honor", 3)):
        run = Cluster().see(node("z0-0").zone("z0"), node("z1-0").zone("z1").taint("gpu"))
        run.see(*(web(f"p{i}").spread(ZONE, {"app": "web"}, node_taints_policy=policy) for i in range(3)))
        assert len(binds(run.step())) == expected


def test_versions_of_a_deployment_spread_each_for_itself():
    run = zones(1, 1)
    for version in ("v1", "v2"):
        run.see(
            *(
                web(f"{version}-{i}").label("hash", version).spread(ZONE, {"app": "web"}, match_label_keys=["hash"])
                for i in range(2)
            )
        )
        assert by_zone(binds(run.step())) == {"z0": 1, "z1": 1}


def test_pods_being_deleted_and_other_namespaces_do_not_count():
    run = zones(1, 1)
    run.see(web("old").node("z0-0").deleting(), web("far").ns("other").node("z0-0"))
    run.see(web("a").node("z1-0"))
    run.see(web("p").spread(ZONE, {"app": "web"}))
    assert binds(run.step()) == {"p": "z0-0"}


def test_a_wish_to_spread_wins_over_fuller_nodes_but_never_blocks():
    run = zones(2, 1)
    run.see(*(web(f"p{i}").spread(HOST, {"app": "web"}, soft=True) for i in range(6)))
    placed = binds(run.step())
    assert sorted(placed.values()) == ["z0-0", "z0-0", "z0-1", "z0-1", "z1-0", "z1-0"]


def test_pods_behind_a_service_spread_without_asking():
    """Two nodes of one zone and one of another: without the service all nodes are alike."""
    run = zones(2, 1).see(service("web").select({"app": "web"}))
    run.see(*(web(f"p{i}") for i in range(4)))
    assert by_zone(binds(run.step())) == {"z0": 2, "z1": 2}


@pytest.mark.parametrize(
    "owner,version", [(replication_controller, "v1"), (replica_set, "apps/v1"), (stateful_set, "apps/v1")]
)
def test_pods_of_a_controller_spread_without_a_service(owner, version):
    made = owner("web").select({"app": "web"})
    run = zones(2, 1).see(made)
    run.see(*(web(f"p{i}").owner(made.kind, "web", api_version=version) for i in range(4)))
    assert by_zone(binds(run.step())) == {"z0": 2, "z1": 2}


def test_a_foreign_controller_is_not_taken_for_the_one_of_its_name():
    """apps.kruise.io has a StatefulSet of its own: its pods are none of those of apps/v1."""
    run = zones(2, 1).see(stateful_set("web").select({"app": "web"}))
    run.see(*(web(f"p{i}").owner("StatefulSet", "web", api_version="apps.kruise.io/v1beta1") for i in range(3)))
    assert by_zone(binds(run.step())) == {"z0": 2, "z1": 1}


def test_a_profile_can_demand_spreading_of_every_replica_set():
    args = {
        "PodTopologySpread": {
            "defaultingType": "List",
            "defaultConstraints": [{"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}],
        }
    }
    run = Cluster(Engine(EngineSettings(profiles=(ProfileSettings(args=args),))))
    run.see(node("z0-0").zone("z0").pods(1), node("z1-0").zone("z1"), replica_set("rs").select({"app": "web"}))
    run.see(*(web(f"p{i}").owner("ReplicaSet", "rs") for i in range(4)))
    assert by_zone(binds(run.step())) == {"z0": 1, "z1": 2}
