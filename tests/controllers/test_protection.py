"""Groups outlive what refers to them: PodGroups their live pods, CompositePodGroups their children."""

from __future__ import annotations

import asyncio

from support.in_process import Inside, inside

REF = {"workloadRef": {"workloadName": "w", "templateName": "t"}}
BASIC = {"schedulingPolicy": {"basic": {}}, **REF}
GANG = {"schedulingPolicy": {"gang": {"minCount": 1}}}


async def member(cluster: Inside, name: str, group: str) -> None:
    spec = {"containers": [{"name": "c", "image": "i"}], "schedulingGroup": {"podGroupName": group}}
    await cluster.create("Pod", name, spec=spec)


async def pass_by(cluster: Inside) -> None:
    """An unused group comes and goes: whatever was due before has been looked at."""
    await cluster.create("PodGroup", "passer-by", spec=GANG)
    await cluster.delete("PodGroup", "passer-by")
    await cluster.gone("PodGroup", "passer-by")


def test_a_pod_group_waits_for_its_live_pods() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            await cluster.create("PodGroup", "gang", spec=GANG)
            await member(cluster, "a", "gang")
            await member(cluster, "b", "gang")
            await member(cluster, "other", "another")
            await cluster.delete("PodGroup", "gang")
            await pass_by(cluster)
            waiting = cluster.look("PodGroup", "gang")
            assert waiting is not None and waiting["metadata"]["deletionTimestamp"]
            await cluster.delete("Pod", "a", grace_seconds=0)
            await cluster.gone("Pod", "a")
            await pass_by(cluster)
            assert cluster.look("PodGroup", "gang") is not None
            # A finished pod no longer needs its group.
            await cluster.patch("Pod", "b", {"status": {"phase": "Succeeded"}}, subresource="status")
            await cluster.gone("PodGroup", "gang")
            assert cluster.look("Pod", "b") is not None

    asyncio.run(scenario())


def test_other_finalizers_are_left_alone() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            await cluster.create("PodGroup", "gang", spec=GANG, metadata={"finalizers": ["example.com/hold"]})
            await cluster.delete("PodGroup", "gang")
            left = await cluster.until(
                "PodGroup", "gang", when=lambda body: body["metadata"]["finalizers"] == ["example.com/hold"]
            )
            assert left["metadata"]["deletionTimestamp"]

    asyncio.run(scenario())


def test_a_composite_waits_for_its_children() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            await cluster.create("CompositePodGroup", "root", spec=BASIC)
            await cluster.create("CompositePodGroup", "inner", spec=BASIC | {"parentCompositePodGroupName": "root"})
            await cluster.create("PodGroup", "leaf", spec=GANG | REF | {"parentCompositePodGroupName": "root"})
            await cluster.delete("CompositePodGroup", "root")
            await pass_by(cluster)
            assert cluster.look("CompositePodGroup", "root") is not None
            await cluster.delete("PodGroup", "leaf")
            await cluster.gone("PodGroup", "leaf")
            await pass_by(cluster)
            assert cluster.look("CompositePodGroup", "root") is not None
            await cluster.delete("CompositePodGroup", "inner")
            await cluster.gone("CompositePodGroup", "inner")
            await cluster.gone("CompositePodGroup", "root")

    asyncio.run(scenario())


def test_unused_groups_go_at_once() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            await cluster.create("CompositePodGroup", "root", spec=BASIC)
            await cluster.delete("CompositePodGroup", "root")
            await cluster.gone("CompositePodGroup", "root")

    asyncio.run(scenario())
