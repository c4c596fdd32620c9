"""Queries run one at a time in a forked process with a time limit, so decisions never wait for them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.base.client import Resource
from phalanx.base.errors import ApiProblem, InternalError, NotFound, Timeout, TooManyRequests
from phalanx.base.resources import LEASES
from phalanx.engine.plugins.config import read_config
from phalanx.kube.client import HttpClient
from phalanx.kube.config import load
from phalanx.serve.queries.fork import ForkedQueries
from phalanx.serve.scheduler_process import SchedulerProcess, SchedulerSettings
from support.local_cluster import LocalCluster

PODS = Resource("", "v1", "pods", "Pod")


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def _for_ever() -> bytes:
    while True:
        signal.pause()


def test_an_answer_comes_back_whole_and_the_present_is_not_touched() -> None:
    state = {"seen": 0}

    def compute() -> bytes:
        state["seen"] += 1
        return b"x" * 3_000_000 + str(state["seen"]).encode()

    async def main() -> None:
        aside = ForkedQueries()
        for _ in range(2):
            said = await aside.answer(compute)
            assert len(said) == 3_000_001 and said.endswith(b"1")

    asyncio.run(main())
    assert state == {"seen": 0}


@pytest.mark.parametrize(
    ("raised", "kind", "said"),
    [
        (NotFound("no such pod", name="a"), NotFound, "no such pod"),
        (ValueError("a defect"), InternalError, "ValueError while computing"),
        (SystemExit(3), InternalError, "SystemExit while computing"),
        (RecursionError(), InternalError, "RecursionError"),
    ],
)
def test_what_goes_wrong_aside_is_reported_here(raised: BaseException, kind: type[ApiProblem], said: str) -> None:
    def compute() -> bytes:
        raise raised

    with pytest.raises(kind, match=said):
        asyncio.run(_ask(ForkedQueries(), compute))


async def _ask(aside: ForkedQueries, compute: Callable[[], bytes]) -> bytes:
    return await aside.answer(compute)


def test_a_child_that_is_killed_is_an_error_and_not_a_wait() -> None:
    with pytest.raises(InternalError, match="ended without one"):
        asyncio.run(_ask(ForkedQueries(), lambda: os.kill(os.getpid(), signal.SIGKILL) or b""))


def test_a_question_that_is_too_large_ends_and_so_does_its_process() -> None:
    async def main() -> None:
        aside = ForkedQueries(seconds=0.05)
        task = asyncio.create_task(aside.answer(_for_ever))
        while not aside.child:
            await asyncio.sleep(0)
        child = aside.child
        with pytest.raises(Timeout, match="too large"):
            await task
        assert gone(child)

    asyncio.run(main())


def test_an_abandoned_request_is_not_thought_about_any_more_and_many_must_wait() -> None:
    async def main() -> None:
        aside = ForkedQueries(waiting=2)
        first, second = (asyncio.create_task(aside.answer(_for_ever)) for _ in range(2))
        while not aside.child:
            await asyncio.sleep(0)
        child = aside.child
        with pytest.raises(TooManyRequests):
            await aside.answer(_for_ever)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        assert gone(child)
        while not aside.child:
            await asyncio.sleep(0)
        second.cancel()
        await asyncio.gather(second, return_exceptions=True)
        assert await aside.answer(lambda: b"free again") == b"free again"

    asyncio.run(main())


def _node(name: str) -> dict[str, Any]:
    room = {"cpu": "64", "memory": "256Gi", "pods": "200"}
    labels = {"kubernetes.io/hostname": name, "zone": f"z{hash(name) % 3}"}
    status = {"capacity": room, "allocatable": room, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}, "status": status}


def _huge_job() -> dict[str, Any]:
    """20,000 pods that keep apart from each other: far more thinking than a lease lasts."""
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"a": "b"}},
    }
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}
    spec = {"restartPolicy": "Never", "topologySpreadConstraints": [spread], "containers": [container]}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": spec}
    job = {"parallelism": 20_000, "completions": 20_000, "completionMode": "Indexed", "template": template}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "huge", "namespace": "default"}, "spec": job}


def test_the_lease_is_renewed_and_pods_are_bound_while_a_large_query_is_computed(
    start_cluster: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    cluster = start_cluster(run_nodes=False, run_controllers=False, run_scheduler=False)

    async def main() -> None:
        election = {"leaseDuration": "5s", "renewDeadline": "4s", "retryPeriod": "200ms"}
        head = {"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration"}
        config = read_config({**head, "leaderElection": election})
        settings = SchedulerSettings(kubeconfig=str(cluster.kubeconfig), config=config, lease_name="huge-question")
        process = SchedulerProcess(settings)
        async with HttpClient(load(cluster.kubeconfig)) as client:
            nodes = Resource("", "v1", "nodes", "Node", namespaced=False)
            await asyncio.gather(*(client.create(nodes, _node(f"n{number}")) for number in range(300)))
            await process.start()
            try:
                assert process.parts is not None
                async with asyncio.timeout(60):
                    await process.parts.service.wait_synced()
                    body = json.dumps({"items": [_huge_job()]}).encode()
                    diagnostics = process.parts.diagnostics
                    asking = asyncio.create_task(diagnostics.answer("POST", "/phalanx/v1/whatif", {}, body))
                    renewed: set[str] = set()
                    number = 0
                    while len(renewed) < 3 or number < 5:
                        assert not asking.done(), "the question is meant to take long"
                        name = f"quick-{number}"
                        await client.create(PODS, _quick(name), "default")
                        while not json.loads(await client.get(PODS, name, "default"))["spec"].get("nodeName"):
                            await asyncio.sleep(0.01)
                        number += 1
                        lease = json.loads(await client.get(LEASES, "huge-question", "kube-system"))
                        renewed.add(lease["spec"]["renewTime"])
                        await asyncio.sleep(0.05)
                    asking.cancel()
                    await asyncio.gather(asking, return_exceptions=True)
            finally:
                await process.stop()

    asyncio.run(main())


def _quick(name: str) -> dict[str, Any]:
    container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "100m"}}}
    spec = {"schedulerName": "default-scheduler", "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
