"""Pods that Kueue holds back or sends: its topology annotations and scheduling gates."""

from __future__ import annotations

import pytest

from phalanx.engine.explain.ask import why
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group

REQUIRED, PREFERRED = "kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-preferred-topology"


def cluster() -> Cluster:
    return Cluster().see(*(node(f"n{i}").cpu(1).label("rack", f"r{i // 2}") for i in range(4)))


def racks(run: Cluster) -> dict[str, str]:
    return {name: run.nodes[at].metadata.labels["rack"] for name, at in run.placed.items()}


@pytest.mark.parametrize("first", ["group", "pods"])
def test_a_required_topology_on_pods_is_that_of_their_group(first: str) -> None:
    run = cluster()
    run.see(pod("other").cpu(1)).step()  # one rack has room for one pod only
    group = pod_group("train").gang(2)
    pods = [pod(f"train-{i}").cpu(1).group("train").annotate(REQUIRED, "rack") for i in range(2)]
    run.see(*([group, *pods] if first == "group" else [*pods, group])).step()
    assert {rack for name, rack in racks(run).items() if name != "other"} != {racks(run)["other"]}
    assert len({rack for name, rack in racks(run).items() if name != "other"}) == 1


def test_a_gang_that_fits_in_no_rack_waits_where_the_topology_is_required_only() -> None:
    run = cluster().see(pod_group("required").gang(3))
    run.see(*(pod(f"required-{i}").cpu(1).group("required").annotate(REQUIRED, "rack") for i in range(3))).step()
    assert not run.placed and "in one rack" in run.message("required-0")
    run = cluster().see(pod_group("preferred").gang(3))
    run.see(*(pod(f"preferred-{i}").cpu(1).group("preferred").annotate(PREFERRED, "rack") for i in range(3))).step()
    assert len(run.placed) == 3


def test_a_group_keeps_the_topology_it_names_itself() -> None:
    run = cluster().see(pod_group("train").gang(3).topology("kubernetes.io/os"))
    run.see(*(node(f"n{i}").cpu(1).label("rack", f"r{i // 2}").label("kubernetes.io/os", "linux") for i in range(4)))
    run.see(*(pod(f"train-{i}").cpu(1).group("train").annotate(REQUIRED, "rack") for i in range(3))).step()
    assert len(run.placed) == 3


def test_a_gang_that_kueue_has_not_admitted_says_so_and_is_not_unschedulable() -> None:
    run = cluster().see(pod_group("train").gang(2))
    gated = [pod(f"train-{i}").cpu(1).group("train").gate("kueue.x-k8s.io/admission") for i in range(2)]
    run.see(*gated).step()
    (item,) = why(run.engine.scheduler, "PodGroup", "default", "train").items
    assert "Kueue has not admitted it" in item.summary
    assert not any("Unschedulable" in run.pod_condition(f"train-{i}") for i in range(2))
