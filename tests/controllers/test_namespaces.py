"""A deleted namespace takes everything in it along, and goes last."""

from __future__ import annotations

import asyncio

import pytest

from phalanx.base.errors import Forbidden
from support.in_process import inside

HOLD = "example.com/hold"


def test_a_new_cluster_has_its_system_objects() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            names = {entry.key[2] for entry in cluster.store.list("namespaces")}
            assert names == {"default", "kube-system", "kube-public", "kube-node-lease"}
            critical = cluster.look("PriorityClass", "system-cluster-critical")
            node = cluster.look("PriorityClass", "system-node-critical")
            assert critical is not None and critical["value"] == 2_000_000_000
            assert node is not None and node["value"] == 2_000_001_000
            revision = cluster.store.revision
            await cluster.start_duties()  # a second start finds everything there
            assert cluster.store.revision == revision

    asyncio.run(scenario())


def test_everything_in_it_goes_first() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            await cluster.create("Namespace", "team")
            await cluster.create("ConfigMap", "config", "team")
            await cluster.create("ConfigMap", "elsewhere", "default")
            await cluster.create("Pod", "pod", "team", spec={"containers": [{"name": "c", "image": "i"}]})
            await cluster.create(
                "Event", "event", "team", involvedObject={"kind": "Pod", "namespace": "team", "name": "pod"}
            )
            await cluster.delete("Namespace", "team")
            await cluster.gone("Namespace", "team")
            for resource in ("configmaps", "pods", "events"):
                assert not cluster.store.list(resource, "team")
            assert cluster.look("ConfigMap", "elsewhere") is not None
            await cluster.create("Namespace", "team")  # the name is free again

    asyncio.run(scenario())


def test_it_waits_for_what_a_finalizer_holds_and_says_so() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            await cluster.create("Namespace", "team")
            await cluster.create("ConfigMap", "held", "team", metadata={"finalizers": [HOLD]})
            await cluster.delete("Namespace", "team")
            waiting = await cluster.until("Namespace", "team", when=lambda body: body["status"].get("conditions"))
            assert waiting["status"]["phase"] == "Terminating"
            said = {condition["type"]: condition for condition in waiting["status"]["conditions"]}
            assert said["NamespaceContentRemaining"]["status"] == "True"
            assert "configmaps. has 1 resource instances" in said["NamespaceContentRemaining"]["message"]
            assert HOLD in said["NamespaceFinalizersRemaining"]["message"]
            with pytest.raises(Forbidden):
                await cluster.create("ConfigMap", "late", "team")
            await cluster.patch("ConfigMap", "held", {"metadata": {"finalizers": None}}, "team")
            await cluster.gone("Namespace", "team")

    asyncio.run(scenario())


def test_a_deletion_asked_for_while_no_controller_ran_is_done_at_start() -> None:
    async def scenario() -> None:
        async with inside(duties=False) as cluster:
            await cluster.create("Namespace", "team")
            await cluster.create("Secret", "s", "team")
            await cluster.delete("Namespace", "team")
            await cluster.start_duties()
            await cluster.gone("Namespace", "team")
            assert not cluster.store.list("secrets", "team")

    asyncio.run(scenario())


def test_pods_go_before_everything_else() -> None:
    async def scenario() -> None:
        async with inside() as cluster:
            await cluster.create("Namespace", "team")
            await cluster.create("ConfigMap", "config", "team")
            body = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
            await cluster.create("Pod", "held", "team", metadata={"finalizers": [HOLD]}, **body)
            await cluster.delete("Namespace", "team")
            waiting = await cluster.until("Namespace", "team", when=lambda body: body["status"].get("conditions"))
            said = {condition["type"]: condition for condition in waiting["status"]["conditions"]}
            assert said["NamespaceContentRemaining"]["message"] == (
                "Some resources are remaining: pods. has 1 resource instances"
            )
            assert said["NamespaceDeletionContentFailure"]["status"] == "False"
            assert cluster.look("ConfigMap", "config", "team") is not None
            await cluster.patch("Pod", "held", {"metadata": {"finalizers": None}}, namespace="team")
            await cluster.gone("Namespace", "team")

    asyncio.run(scenario())
