"""PodDisruptionBudgets: how many pods may go, as the status says it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from support.controller_world import Json, condition, image_of, world
from support.manifests import deployment, template
from support.states import new_image, rolled_out


def budget(name: str, app: str, **spec: Any) -> Json:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"app": app}}, **spec},
    }


@pytest.mark.parametrize(
    ("spec", "desired", "allowed"),
    [
        ({"minAvailable": 2}, 2, 2),
        ({"minAvailable": "60%"}, 3, 1),
        ({"maxUnavailable": 1}, 3, 1),
        ({"maxUnavailable": "30%"}, 2, 2),
        ({"maxUnavailable": 0}, 4, 0),
    ],
)
def test_the_status_tells_how_many_may_go(spec: Json, desired: int, allowed: int) -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(deployment("web", 4))
            await cluster.apply(budget("keep", "web", **spec))
            found = await cluster.until(
                "PodDisruptionBudget", "keep", when=lambda b: b.get("status", {}).get("currentHealthy") == 4
            )
            status = found["status"]
            assert (status["desiredHealthy"], status["disruptionsAllowed"], status["expectedPods"]) == (
                desired,
                allowed,
                4,
            )
            reason = "SufficientPods" if allowed else "InsufficientPods"
            assert condition(found, "DisruptionAllowed")["reason"] == reason

    asyncio.run(scenario())


def test_a_rollout_does_not_change_how_many_pods_are_expected() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(deployment("web", 4))
            await cluster.apply(budget("keep", "web", maxUnavailable=1))
            await cluster.until("Deployment", "web", when=rolled_out)
            seen: set[int] = set()

            def watch(pods: list[Json]) -> bool:
                seen.update(b["status"]["expectedPods"] for b in cluster.all("PodDisruptionBudget"))
                return len(pods) == 4 and {image_of(pod) for pod in pods} == {"v2"}

            await cluster.until(
                "PodDisruptionBudget", "keep", when=lambda b: b.get("status", {}).get("expectedPods") == 4
            )
            await cluster.patch("Deployment", "web", new_image("v2"))
            await cluster.eventually("Pod", watch)
            assert seen == {4}

    asyncio.run(scenario())


def test_pods_without_an_owner_make_a_percentage_meaningless_and_it_says_so() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"app": "x"}}}
            await cluster.apply(pod | {"spec": template("100m", app="x")["spec"]})
            await cluster.apply(budget("keep", "x", maxUnavailable=1))
            found = await cluster.until("PodDisruptionBudget", "keep", when=lambda b: condition(b, "DisruptionAllowed"))
            assert condition(found, "DisruptionAllowed")["reason"] == "SyncFailed"
            assert "no controller" in condition(found, "DisruptionAllowed")["message"]
            assert found["status"].get("disruptionsAllowed", 0) == 0

    asyncio.run(scenario())
