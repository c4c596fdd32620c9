"""In cluster mode: a pod that was promised a group gets it, whatever happens before the group is there."""

from __future__ import annotations

from typing import Any

import pytest

from support.lifecycle.cluster_mode import beside_cluster
from support.lifecycle.crashes import Crash
from support.lifecycle.events import CLASS, priority_class
from support.lifecycle.manifests import deployment, pytorch_job, template
from support.lifecycle.sequences import definitions
from support.virtual_time import VirtualLoop, run

Json = dict[str, Any]


@pytest.mark.parametrize("native", [True, False])
def test_a_pod_that_was_promised_a_group_gets_it_though_others_began_without(native: bool) -> None:
    async def main(loop: VirtualLoop) -> None:
        crash = Crash()
        async with beside_cluster(3, native=native, crash=crash, kinds=definitions("pytorchjob")) as cluster:
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

    run(main)


@pytest.mark.parametrize("native", [True, False])
def test_the_only_pod_of_a_set_is_replaced_while_its_group_is_made_again(native: bool) -> None:
    """Seen: the group of the roll-out was taken away when its pod had failed, and the next pod named it already."""

    async def main(loop: VirtualLoop) -> None:
        async with beside_cluster(3, native=native) as cluster:
            await cluster.apply(priority_class(300))
            await cluster.apply(deployment("w", 1))
            await cluster.settle(60)
            await cluster.patch("Deployment", "w", {"spec": {"template": template("1", priorityClassName=CLASS)}})
            await cluster.settle(60)
            (pod,) = cluster.all("Pod")
            failed = {"status": {"phase": "Failed"}}
            await cluster.patch("Pod", pod["metadata"]["name"], failed, subresource="status")
            await cluster.settle(60)
            assert "Running" in [pod["status"]["phase"] for pod in cluster.all("Pod")]

    run(main)
