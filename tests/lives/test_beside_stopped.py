"""Phalanx beside other controllers is stopped between its answer to a pod and the group that it promised there."""

from __future__ import annotations

from typing import Any

import pytest
from beside_cluster import BesideCluster
from crashing import Crash
from manifests import pytorch_job
from stories import definitions

from phalanx.testing.virtual_time import VirtualLoop, run

Json = dict[str, Any]


@pytest.mark.parametrize("native", [True, False])
def test_a_pod_that_was_promised_a_group_gets_it_though_others_began_without(native: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        cluster = BesideCluster(native=native)
        crash = Crash()
        cluster.between = crash.client
        try:
            await cluster.start_duties()
            for definition in definitions("pytorchjob"):
                await cluster.apply(definition)
            await cluster.install()
            await cluster.start_upstream()
            await cluster.start_nodes(3, "cpu=4")
            await cluster.start_controllers()
            await cluster.start_scheduler()
            crash.arm(1, answered=False)
            await cluster.apply(pytorch_job("w", 2))
            await crash.crashed.wait()
            await cluster.kill("controllers")  # the webhook is away, too: pods pass as they are
            await cluster.settle(60)
            promised = [pod for pod in cluster.all("Pod") if not pod["spec"].get("nodeName")]
            assert promised, "one waits for the group that it was promised"
            assert len(promised) < 3, "and others run without"
            await cluster.start_controllers()
            await cluster.settle(60)
            assert [pod["status"]["phase"] for pod in cluster.all("Pod")] == ["Running"] * 3
        finally:
            await cluster.stop()

    run(main)
