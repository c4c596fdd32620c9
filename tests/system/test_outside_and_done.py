"""Pods that succeeded, outside of their gang or deleted meanwhile, are not waited for when another one is replaced."""

from __future__ import annotations

import pytest

from support.lifecycle.events import OFF
from support.lifecycle.looks import KINDS, linked, minimum, running
from support.lifecycle.sequences import definitions
from support.simulated_cluster import SimulatedCluster, simulated_cluster
from support.virtual_time import VirtualLoop, run


async def start(cluster: SimulatedCluster, kind: str) -> None:
    """Create a workload of this kind and wait for its pods."""
    for definition in definitions("trainer"):
        await cluster.apply(definition)
    await cluster.settle(40)
    for body in KINDS[kind]:
        await cluster.apply(body)
    await cluster.settle(60)


@pytest.mark.parametrize("kind", ["Job", "JobSet", "TrainJob"])
def test_one_that_succeeded_outside_is_not_waited_for(kind: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            await start(cluster, kind)
            gates = cluster.gates
            await cluster.switch_gates(OFF)
            await cluster.settle(60)
            await cluster.delete("Pod", cluster.all("Pod")[-1]["metadata"]["name"])
            await cluster.settle(90)
            await cluster.switch_gates(gates)
            await cluster.settle(90)
            assert minimum(cluster) == 2
            outsider = next(pod for pod in cluster.all("Pod") if not linked(pod))
            ends = {"metadata": {"annotations": {"simulation.phalanx.dev/run-seconds": "0"}}}
            await cluster.patch("Pod", outsider["metadata"]["name"], ends)
            await cluster.settle(90)
            assert running(cluster) == 2
            member = next(pod for pod in cluster.all("Pod") if linked(pod))
            await cluster.delete("Pod", member["metadata"]["name"])
            await cluster.settle(90)
            assert running(cluster) == 2, "the other pod and the replacement"

    run(main)


@pytest.mark.parametrize("kind", ["Job", "JobSet", "TrainJob"])
def test_those_that_succeeded_and_were_deleted_are_not_waited_for(kind: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            await start(cluster, kind)
            first, *others = [pod["metadata"]["name"] for pod in cluster.all("Pod")]
            assert running(cluster) == len(others) + 1 > 2
            for name in others:
                ended = {"status": {"phase": "Succeeded"}}
                await cluster.patch("Pod", name, ended, subresource="status")
            await cluster.settle(60)
            assert running(cluster) == 1
            for name in others:
                await cluster.delete("Pod", name)
            await cluster.settle(60)
            assert len(cluster.all("Pod")) == 1
            await cluster.delete("Pod", first)
            await cluster.settle(90)
            assert running(cluster) == 1, "what replaced it"

    run(main)
