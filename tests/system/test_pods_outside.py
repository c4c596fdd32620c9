"""Pods made while the API had no groups run on outside of their gang, which does not wait for them."""

from __future__ import annotations

from typing import Any

import pytest

from support.lifecycle.events import OFF
from support.lifecycle.looks import KINDS, linked, minimum, running
from support.lifecycle.sequences import definitions
from support.simulated_cluster import simulated_cluster
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]


@pytest.mark.parametrize("kind", KINDS)
def test_a_gang_does_not_wait_for_a_pod_made_while_gates_were_off(kind: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(4) as cluster:
            for file in ("mpijob", "trainer"):
                for definition in definitions(file):
                    await cluster.apply(definition)
            await cluster.settle(40)
            for body in KINDS[kind]:
                await cluster.apply(body)
            await cluster.settle(60)
            assert running(cluster) == 3
            assert minimum(cluster) == 3
            gates = cluster.gates
            await cluster.switch_gates(OFF)
            await cluster.settle(60)
            await cluster.delete("Pod", cluster.all("Pod")[-1]["metadata"]["name"])
            await cluster.settle(90)
            assert running(cluster) == 3
            await cluster.switch_gates(gates)
            await cluster.settle(90)
            assert [linked(pod) for pod in cluster.all("Pod")].count(False) == 1
            assert minimum(cluster) == 2, "the gang asks for those in it"
            member = next(pod for pod in cluster.all("Pod") if linked(pod))
            await cluster.delete("Pod", member["metadata"]["name"])
            await cluster.settle(90)
            assert running(cluster) == 3, "who takes its place does not wait"
            outsider = next(pod for pod in cluster.all("Pod") if not linked(pod))
            await cluster.delete("Pod", outsider["metadata"]["name"])
            await cluster.settle(90)
            assert running(cluster) == 3
            assert minimum(cluster) == 3, "all are in it again"

    run(main)
