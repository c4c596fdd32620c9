"""A pod that ran outside of its gang and has succeeded is not waited for either, when another one is replaced."""

from __future__ import annotations

import pytest

from phalanx.testing.simulated_cluster import simulated_cluster
from phalanx.testing.virtual_time import VirtualLoop, run
from support.lifecycle.events import OFF
from support.lifecycle.looks import KINDS, linked, minimum, running
from support.lifecycle.sequences import definitions


@pytest.mark.parametrize("kind", ["Job", "JobSet", "TrainJob"])
def test_one_that_succeeded_outside_is_not_waited_for(kind: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            for definition in definitions("trainer"):
                await cluster.apply(definition)
            await cluster.settle(40)
            for body in KINDS[kind]:
                await cluster.apply(body)
            await cluster.settle(60)
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
            assert running(cluster) == 2, "the other one and who took its place"

    run(main)
