"""Owner references: what goes when its owner goes, what waits, what stays."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.base.tasks import EndedEarly
from phalanx.local.system_controllers import SystemControllers
from support.in_process import TIMEOUT, Inside, Json, inside, owner

HOLD = "example.com/hold"


async def owned(cluster: Inside, name: str, *owners: Json, namespace: str = "default", **metadata: object) -> Json:
    return await cluster.create("ConfigMap", name, namespace, metadata={"ownerReferences": list(owners), **metadata})


async def release(cluster: Inside, name: str) -> None:
    await cluster.patch("ConfigMap", name, {"metadata": {"finalizers": None}})


async def pass_by(cluster: Inside) -> None:
    """A piece of garbage created now and collected: whatever was due before has been looked at."""
    ghost = {"apiVersion": "v1", "kind": "ConfigMap", "name": "nobody", "uid": "0"}
    await owned(cluster, "passer-by", ghost)
    await cluster.gone("ConfigMap", "passer-by")


def test_what_a_deleted_object_owned_goes_with_it() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            root = await cluster.create("ConfigMap", "root")
            child = await owned(cluster, "child", owner(root))
            await owned(cluster, "grandchild", owner(child))
            await cluster.create("ConfigMap", "unrelated")
            await cluster.delete("ConfigMap", "root", propagation="Background")
            await cluster.gone("ConfigMap", "grandchild")
            assert cluster.look("ConfigMap", "child") is None and cluster.look("ConfigMap", "unrelated") is not None

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "changes",
    [{"uid": "11111111-2222-3333-4444-555555555555"}, {"name": "elsewhere"}, {"kind": "Secret"}],
    ids=["another uid", "another name", "another kind"],
)
def test_an_owner_that_does_not_exist_does_not_keep_anything(changes: Json) -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            root = await cluster.create("ConfigMap", "root")
            await owned(cluster, "child", owner(root, **changes))
            await cluster.gone("ConfigMap", "child")
            assert cluster.look("ConfigMap", "root") is not None

    asyncio.run(scenario())


def test_an_owner_in_another_namespace_does_not_count() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            root = await cluster.create("ConfigMap", "root", "kube-public")
            await owned(cluster, "child", owner(root))
            await cluster.gone("ConfigMap", "child")

    asyncio.run(scenario())


def test_a_cluster_scoped_owner_may_own_anything() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            node = await cluster.create("Node", "n")
            await owned(cluster, "child", owner(node))
            await pass_by(cluster)
            assert cluster.look("ConfigMap", "child") is not None
            await cluster.delete("Node", "n")
            await cluster.gone("ConfigMap", "child")

    asyncio.run(scenario())


def test_one_of_two_owners_is_enough_to_stay() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            first, second = await cluster.create("ConfigMap", "a"), await cluster.create("ConfigMap", "b")
            await owned(cluster, "child", owner(first), owner(second, controller=True))
            await cluster.delete("ConfigMap", "a")
            child = await cluster.until(
                "ConfigMap", "child", when=lambda body: len(body["metadata"]["ownerReferences"]) == 1
            )
            assert child["metadata"]["ownerReferences"] == [owner(second, controller=True)]
            await cluster.delete("ConfigMap", "b")
            await cluster.gone("ConfigMap", "child")

    asyncio.run(scenario())


def test_foreground_waits_for_those_that_block() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            root = await cluster.create("ConfigMap", "root")
            await owned(cluster, "blocking", owner(root, block=True), finalizers=[HOLD])
            await owned(cluster, "quick", owner(root, block=True))
            await cluster.delete("ConfigMap", "root", propagation="Foreground")
            await cluster.until("ConfigMap", "blocking", when=lambda body: "deletionTimestamp" in body["metadata"])
            await cluster.gone("ConfigMap", "quick")
            await pass_by(cluster)
            waiting = cluster.look("ConfigMap", "root")
            assert waiting is not None and waiting["metadata"]["finalizers"] == ["foregroundDeletion"]
            await release(cluster, "blocking")
            await cluster.gone("ConfigMap", "root")
            assert cluster.look("ConfigMap", "blocking") is None

    asyncio.run(scenario())


def test_foreground_does_not_wait_for_those_that_do_not_block() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            root = await cluster.create("ConfigMap", "root")
            await owned(cluster, "slow", owner(root), finalizers=[HOLD])
            await cluster.delete("ConfigMap", "root", propagation="Foreground")
            await cluster.gone("ConfigMap", "root")
            await cluster.until("ConfigMap", "slow", when=lambda body: "deletionTimestamp" in body["metadata"])

    asyncio.run(scenario())


def test_foreground_goes_from_the_leaves_to_the_root() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            root = await cluster.create("ConfigMap", "root")
            child = await owned(cluster, "child", owner(root, block=True))
            await owned(cluster, "leaf", owner(child, block=True), finalizers=[HOLD])
            await cluster.delete("ConfigMap", "root", propagation="Foreground")
            await cluster.until("ConfigMap", "leaf", when=lambda body: "deletionTimestamp" in body["metadata"])
            assert cluster.look("ConfigMap", "root") is not None and cluster.look("ConfigMap", "child") is not None
            await release(cluster, "leaf")
            await cluster.gone("ConfigMap", "root")
            assert cluster.look("ConfigMap", "child") is None and cluster.look("ConfigMap", "leaf") is None

    asyncio.run(scenario())


def test_a_circle_of_owners_ends_in_foreground_too() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            first = await cluster.create("ConfigMap", "a")
            second = await owned(cluster, "b", owner(first, block=True))
            await cluster.patch("ConfigMap", "a", {"metadata": {"ownerReferences": [owner(second, block=True)]}})
            await cluster.delete("ConfigMap", "a", propagation="Foreground")
            await cluster.gone("ConfigMap", "a")
            await cluster.gone("ConfigMap", "b")

    asyncio.run(scenario())


def test_orphans_stay_without_their_owner() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            root = await cluster.create("ConfigMap", "root")
            other = await cluster.create("ConfigMap", "other")
            await owned(cluster, "child", owner(root))
            await owned(cluster, "shared", owner(root), owner(other))
            await cluster.delete("ConfigMap", "root", propagation="Orphan")
            await cluster.gone("ConfigMap", "root")
            child, shared = cluster.look("ConfigMap", "child"), cluster.look("ConfigMap", "shared")
            assert child is not None and "ownerReferences" not in child["metadata"]
            assert shared is not None and shared["metadata"]["ownerReferences"] == [owner(other)]

    asyncio.run(scenario())


def test_an_owner_of_an_unknown_kind_keeps_what_it_owns() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            ghost = {"apiVersion": "example.com/v1", "kind": "Ghost", "name": "g", "uid": "1"}
            await owned(cluster, "child", ghost)
            await pass_by(cluster)
            assert cluster.look("ConfigMap", "child") is not None

    asyncio.run(scenario())


def test_what_became_garbage_while_no_controller_ran_is_found_at_start() -> None:
    async def scenario() -> None:
        async with inside(duties=False) as cluster:
            root = await cluster.create("ConfigMap", "root")
            await owned(cluster, "child", owner(root))
            await cluster.delete("ConfigMap", "root")
            await cluster.start_duties()
            await cluster.gone("ConfigMap", "child")

    asyncio.run(scenario())


def test_a_thousand_dependents_go_together() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            root = await cluster.create("ConfigMap", "root")
            await asyncio.gather(*(owned(cluster, f"child-{i}", owner(root, block=True)) for i in range(1000)))
            await cluster.delete("ConfigMap", "root", propagation="Foreground")
            await cluster.gone("ConfigMap", "root")
            assert not cluster.store.list("configmaps", "default")

    asyncio.run(scenario())


def definition(kind: str) -> Json:
    plural = f"{kind.lower()}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
        "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
    }


def test_custom_resources_own_and_are_owned_from_the_moment_their_kind_exists() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            missing = {"apiVersion": "example.com/v1", "kind": "Ghost", "name": "g", "uid": "1"}
            await owned(cluster, "early", missing)
            await pass_by(cluster)
            assert cluster.look("ConfigMap", "early") is not None  # it is not known yet that there is no such ghost
            await cluster.create("CustomResourceDefinition", "ghosts.example.com", spec=definition("Ghost"))
            await cluster.gone("ConfigMap", "early")
            ghost = await cluster.create("Ghost", "g", spec="anything")
            child = await cluster.create("Ghost", "h", metadata={"ownerReferences": [owner(ghost)]})
            await owned(cluster, "leaf", owner(child))
            await cluster.delete("Ghost", "g")
            await cluster.gone("ConfigMap", "leaf")
            assert cluster.look("Ghost", "h") is None

    asyncio.run(scenario())


def test_custom_resources_go_with_their_namespace_and_their_kind() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            await cluster.create("CustomResourceDefinition", "ghosts.example.com", spec=definition("Ghost"))
            await cluster.create("Namespace", "team")
            await cluster.create("Ghost", "g", "team")
            ghost = await cluster.create("Ghost", "h")
            await owned(cluster, "child", owner(ghost))
            await cluster.delete("Namespace", "team")
            await cluster.gone("Namespace", "team")
            assert not cluster.store.list("ghosts.example.com", "team")
            await cluster.delete("CustomResourceDefinition", "ghosts.example.com")
            await cluster.gone("CustomResourceDefinition", "ghosts.example.com")
            await cluster.gone("ConfigMap", "child")

    asyncio.run(scenario())


def test_a_kind_that_is_no_longer_served_is_not_a_kind_whose_objects_are_gone() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            spec = definition("Ghost")
            await cluster.create("CustomResourceDefinition", "ghosts.example.com", spec=spec)
            ghost = await cluster.create("Ghost", "g")
            await owned(cluster, "child", owner(ghost))
            second = {**spec["versions"][0], "name": "v2", "served": False, "storage": False}
            for served in (False, True):
                first = {**spec["versions"][0], "served": served}
                await cluster.patch(
                    "CustomResourceDefinition", "ghosts.example.com", {"spec": {"versions": [first, second]}}
                )
                await owned(
                    cluster, f"passer-by-{int(served)}", owner(ghost, uid="0", kind="ConfigMap", apiVersion="v1")
                )
                await cluster.gone("ConfigMap", f"passer-by-{int(served)}")
                assert cluster.look("ConfigMap", "child") is not None
            await cluster.delete("Ghost", "g")
            await cluster.gone("ConfigMap", "child")

    asyncio.run(scenario())


@pytest.mark.parametrize("synced", [True, False])
def test_duties_do_not_go_on_without_one_of_their_readers(synced: bool) -> None:
    """A watch that was cancelled by something inside it would leave a kind without garbage collection, unnoticed."""

    async def scenario() -> None:
        async with inside(duties=False) as cluster:
            duties = SystemControllers(cluster.client, cluster.registry)
            running = asyncio.create_task(duties.run())
            reader = None
            while reader is None or (synced and not duties.ready.is_set()):
                await asyncio.sleep(0)
                reader = next((task for task in asyncio.all_tasks() if task.get_name() == "feed configmaps"), None)
            reader.cancel()
            await asyncio.wait([running], timeout=TIMEOUT)
            assert running.done(), "the duties went on"
            with pytest.raises(EndedEarly, match="feed configmaps"):
                running.result()

    asyncio.run(scenario())
