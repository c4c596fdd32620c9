"""A gang that goes as a whole implies a PodDisruptionBudget on clusters whose API server knows no gangs."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.base import resources as r
from phalanx.base.errors import TooManyRequests
from support.lifecycle.cluster_mode import BesideCluster, beside_cluster
from support.lifecycle.manifests import job
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]


async def evict(cluster: BesideCluster, name: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    await cluster.client.create(r.PODS, body, "default", name=name, subresource="eviction")


def budgets(cluster: BesideCluster) -> list[tuple[str, int]]:
    found = cluster.all("PodDisruptionBudget")
    return [(each["metadata"]["name"], each["spec"]["minAvailable"]) for each in found]


def test_a_drain_of_one_member_is_refused_with_the_name_of_the_budget() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with beside_cluster(2, native=False, gang_budgets=True) as cluster:
            await cluster.apply(job("train", 3))
            await cluster.apply(job("alone", 2) | {"metadata": {"name": "alone"}})
            await cluster.settle()
            (group,) = cluster.all("PodGroup")
            assert budgets(cluster) == [(f"gang-{group['metadata']['name']}", 3)]
            pods = [pod["metadata"]["name"] for pod in cluster.all("Pod")]
            with pytest.raises(TooManyRequests, match="disruption budget"):
                await evict(cluster, next(name for name in pods if name.startswith("train")))
            await evict(cluster, next(name for name in pods if name.startswith("alone")))
            await cluster.delete("Job", "train", propagation="Background")
            await cluster.settle()
            assert budgets(cluster) == [], "it goes with its gang"

    run(main)


def test_a_gang_whose_members_may_go_one_by_one_has_a_budget_only_with_terminate_all() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with beside_cluster(2, native=False, gang_budgets=True) as cluster:
            body = job("train", 3)
            body["metadata"]["annotations"]["scheduling.phalanx.dev/disruption"] = "single"
            await cluster.apply(body)
            await cluster.settle()
            assert len(cluster.all("PodGroup")) == 1 and budgets(cluster) == []
            policy = {
                "apiVersion": "scheduling.phalanx.dev/v1alpha1",
                "kind": "WorkloadPolicy",
                "metadata": {"name": "train"},
                "spec": {
                    "targetRef": {"apiGroup": "batch", "kind": "Job", "name": "train"},
                    "rescheduling": {"policy": "TerminateAll"},
                },
            }
            await cluster.apply(policy)
            await cluster.settle()
            assert len(budgets(cluster)) == 1
            await cluster.delete("WorkloadPolicy", "train")
            await cluster.settle()
            assert budgets(cluster) == []

    run(main)
