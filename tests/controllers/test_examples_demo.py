"""The demo of `make up`: the training fits one rack, the inference is whole, the evaluation waits and then runs."""

from __future__ import annotations

import asyncio

from phalanx.serve import demo
from support.controller_world import Json, condition, world


def placed(pods: list[Json], name: str) -> list[str]:
    return [p["spec"]["nodeName"] for p in pods if p["metadata"]["name"].startswith(name) and p["spec"].get("nodeName")]


def test_the_demo_shows_what_it_promises() -> None:
    async def scenario() -> None:
        async with world(nodes=demo.NODES, topology=demo.TOPOLOGY, speed=1) as cluster:
            created = await demo.apply_demo(cluster.client)
            assert created == ["jobset/training", "leaderworkerset/inference", "job/evaluation"]
            assert await demo.apply_demo(cluster.client) == [], "a second time changes nothing"

            def waits(pods: list[Json]) -> bool:
                announced = [
                    p
                    for p in pods
                    if p["metadata"]["name"].startswith("evaluation")
                    and condition(p, "PodScheduled").get("reason") == "Unschedulable"
                ]
                return (
                    len(announced) == 24 and len(placed(pods, "training")) == 8 and len(placed(pods, "inference")) == 8
                )

            pods = await cluster.eventually("Pod", waits)
            assert not placed(pods, "evaluation"), "it holds nothing while it waits"
            assert not await demo.start_over(cluster.client), "its story is not over yet"
            racks = {n["metadata"]["name"]: n["metadata"]["labels"][demo.RACK] for n in cluster.all("Node", "")}
            assert len({racks[node] for node in placed(pods, "training")}) == 1
            for pod in pods:
                if pod["metadata"]["name"].startswith("training"):
                    end = {"metadata": {"annotations": {"simulation.phalanx.dev/run-seconds": "0"}}}
                    await cluster.patch("Pod", pod["metadata"]["name"], end)
            await cluster.until("JobSet", "training", when=lambda o: condition(o, "Completed").get("status") == "True")
            await cluster.eventually("Pod", lambda pods: len(placed(pods, "evaluation")) == 24)
            # A second `make up` tells the story again, from its beginning.
            assert await demo.start_over(cluster.client)
            assert len(await demo.apply_demo(cluster.client)) == 3
            assert not placed(await cluster.eventually("Pod", waits), "evaluation")
            await demo.remove_demo(cluster.client)
            for kind in ("Pod", "PodGroup", "Workload", "Job", "StatefulSet"):
                await cluster.eventually(kind, lambda found: not found)

    asyncio.run(scenario())
