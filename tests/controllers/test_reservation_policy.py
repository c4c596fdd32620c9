"""deploy/base/70-reservations.yaml: only the controllers may announce pods that do not exist yet."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import yaml

from phalanx.base.errors import ApiProblem
from phalanx.model.groups import TO_COME
from support.controller_world import Json, World, world

POLICY = Path(__file__).parents[2] / "deploy" / "base" / "70-reservations.yaml"


def group(name: str, **annotations: str) -> Json:
    return {
        "apiVersion": "scheduling.k8s.io/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 1}}},
    }


def test_a_tenant_cannot_announce_pods() -> None:
    async def scenario() -> None:
        async with world(nodes=0, scheduler=False, controllers=False) as cluster:
            for document in yaml.safe_load_all(POLICY.read_text()):
                await cluster.apply(document)
            await cluster.apply(group("plain", note="x"))
            await refused(cluster, group("tenant", **{TO_COME: "{}"}))
            await cluster.patch("PodGroup", "plain", {"metadata": {"annotations": {"note": "y"}}})
            with pytest.raises(ApiProblem, match="reserves room"):
                await cluster.patch("PodGroup", "plain", {"metadata": {"annotations": {TO_COME: "{}"}}})

    asyncio.run(scenario())


async def refused(cluster: World, body: Json) -> None:
    with pytest.raises(ApiProblem, match="reserves room"):
        await cluster.apply(body)
