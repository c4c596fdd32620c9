"""A Workload says which pods its groups will have, before they exist."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from support.lifecycle.cluster_mode import beside_cluster
from support.lifecycle.manifests import job, jobset, leader_worker_set, mpi_job, train_job
from support.simulated_cluster import SimulatedCluster, simulated_cluster
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]
CRDS = Path(__file__).parents[2] / "examples" / "crds"


def sets(cluster: SimulatedCluster) -> list[tuple[str, int, int, str]]:
    (workload,) = cluster.all("Workload")
    return [
        (
            each["podGroupTemplateName"],
            each["groups"],
            each["podsPerGroup"],
            each["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"],
        )
        for each in (workload.get("status") or {}).get("podSets") or []
    ]


MADE = {
    "Job": (job("x", 3, "2"), [("x-pgt-0", 1, 3, "2")]),
    "JobSet": (jobset("x", 2, 2, "1"), None),
    "LeaderWorkerSet": (leader_worker_set("x", 2, 3, "1"), None),
}


@pytest.mark.parametrize("kind", MADE)
def test_a_suspended_workload_says_what_it_will_need(kind: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        body, expected = MADE[kind]
        async with simulated_cluster(1, topology="cpu=4") as cluster:
            if kind != "LeaderWorkerSet":
                body["spec"]["suspend"] = True
            await cluster.apply(body)
            await cluster.settle()
            found = sets(cluster)
            assert found, cluster.all("Workload")
            if expected is not None:
                assert found == expected
            assert sum(groups * pods for _, groups, pods, _ in found) == {"Job": 3, "JobSet": 4}.get(kind, 6)
            if kind == "Job":
                assert not cluster.all("Pod")
                await cluster.patch("Job", "x", {"spec": {"parallelism": 2}})
                await cluster.settle()
                assert [each[2] for each in sets(cluster)] == [2]

    run(main)


@pytest.mark.parametrize("kind", ["MPIJob", "TrainJob"])
def test_a_suspended_workload_of_another_project_says_it_too(kind: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(1, topology="cpu=4") as cluster:
            for path in ("mpijob.yaml", "trainer.yaml"):
                for definition in yaml.safe_load_all((CRDS / path).read_text()):
                    await cluster.apply(definition)
            *others, body = train_job("x", 2) if kind == "TrainJob" else [mpi_job("x", 2)]
            for other in others:
                await cluster.apply(other)
            if kind == "TrainJob":
                body["spec"]["suspend"] = True
            else:
                body["spec"]["runPolicy"] = {"suspend": True}
            await cluster.apply(body)
            await cluster.settle(quiet=120)  # until the definitions are noticed
            assert sum(groups * pods for _, groups, pods, _ in sets(cluster)) == (3 if kind == "MPIJob" else 2)
            assert not cluster.all("Pod")

    run(main)


def test_in_cluster_mode_our_custom_resource_says_it_too() -> None:
    async def main(loop: VirtualLoop) -> None:
        async with beside_cluster(1, native=False) as cluster:
            body = job("x", 3, "2")
            body["spec"]["suspend"] = True
            body["metadata"]["annotations"] = {"scheduling.phalanx.dev/gang": "true"}
            await cluster.apply(body)
            await cluster.settle()
            assert sets(cluster) == [("x-pgt-0", 1, 3, "2")] and not cluster.all("Pod")

    run(main)
