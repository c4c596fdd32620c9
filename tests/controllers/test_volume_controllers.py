"""Volumes: which claim gets which, what waits for a pod, what becomes of a volume afterwards; simulated disks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from support.controller_world import DyingClient, Json, World, world
from support.manifests import container, template

DISK = "simulation.phalanx.dev/disk"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
SELECTED_NODE = "volume.kubernetes.io/selected-node"


def volume(name: str, size: str, class_: str = "", **spec: Any) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": spec.pop("labels", {})},
        "spec": {
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class_,
            "hostPath": {"path": f"/{name}"},
            **spec,
        },
    }


def claim(name: str, size: str = "1Gi", class_: str | None = "", **spec: Any) -> Json:
    body: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}, **spec},
    }
    if class_ is not None:
        body["spec"]["storageClassName"] = class_
    return body


def storage_class(name: str, mode: str = "Immediate", provisioner: str = DISK, **rest: Any) -> Json:
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": provisioner,
        "volumeBindingMode": mode,
        **rest,
    }


def pod_with(name: str, claim_name: str, **spec: Any) -> Json:
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim_name}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container("100m")], "volumes": volumes, **spec},
    }


def phase(wanted: str) -> Any:
    return lambda obj: (obj.get("status") or {}).get("phase") == wanted


async def bound(cluster: World, name: str) -> Json:
    return await cluster.until("PersistentVolumeClaim", name, when=phase("Bound"))


async def volume_of(cluster: World, name: str) -> Json:
    """Of a claim, once both say so."""
    found = await bound(cluster, name)
    return await cluster.until("PersistentVolume", found["spec"]["volumeName"], when=phase("Bound"))


async def announced(cluster: World, name: str, reason: str) -> str:
    """What an event says about a claim."""

    def about(events: list[Json]) -> list[Json]:
        return [e for e in events if e["involvedObject"]["name"] == name and e["reason"] == reason]

    return str(about(await cluster.eventually("Event", about))[0]["message"])


def reach_of(found: Json) -> list[Json]:
    terms = (found["spec"].get("nodeAffinity") or {}).get("required", {}).get("nodeSelectorTerms") or [{}]
    expressions: list[Json] = terms[0].get("matchExpressions") or []
    return expressions


def test_a_claim_gets_the_smallest_volume_that_suits_it() -> None:
    async def scenario() -> None:
        async with world(0, scheduler=False) as cluster:
            suits: dict[str, Any] = {"accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "labels": {"tier": "fast"}}
            await cluster.apply(volume("too-small", "1Gi", **suits))
            await cluster.apply(volume("other-class", "2Gi", "gold", **suits))
            await cluster.apply(volume("other-label", "2Gi", accessModes=suits["accessModes"], labels={"tier": "slow"}))
            await cluster.apply(volume("other-access", "2Gi", labels={"tier": "fast"}))
            await cluster.apply(volume("other-mode", "2Gi", volumeMode="Block", **suits))
            await cluster.apply(volume("for-somebody", "2Gi", claimRef={"namespace": "default", "name": "x"}, **suits))
            await cluster.apply(volume("bigger", "4Gi", **suits))
            await cluster.apply(volume("right", "3Gi", **suits))
            wanted = claim("c", "2Gi", accessModes=["ReadOnlyMany"], selector={"matchLabels": {"tier": "fast"}})
            await cluster.apply(wanted)
            done = await bound(cluster, "c")
            assert done["spec"]["volumeName"] == "right"
            assert done["metadata"]["annotations"] == {BIND_COMPLETED: "yes", BOUND_BY_CONTROLLER: "yes"}
            assert done["status"]["capacity"] == {"storage": "3Gi"}
            assert done["status"]["accessModes"] == ["ReadWriteOnce", "ReadOnlyMany"]
            given = await cluster.until("PersistentVolume", "right", when=phase("Bound"))
            assert given["spec"]["claimRef"]["uid"] == done["metadata"]["uid"]
            assert given["metadata"]["annotations"][BOUND_BY_CONTROLLER] == "yes"
            left = [v["metadata"]["name"] for v in cluster.all("PersistentVolume") if v["status"]["phase"] != "Bound"]
            assert len(left) == 7

    asyncio.run(scenario())


def test_many_claims_at_once_never_share_a_volume() -> None:
    async def scenario() -> None:
        async with world(0, scheduler=False) as cluster:
            await asyncio.gather(
                *(cluster.apply(volume(f"v{i}", "1Gi")) for i in range(20)),
                *(cluster.apply(claim(f"c{i}")) for i in range(25)),
            )
            claims = await cluster.eventually(
                "PersistentVolumeClaim", lambda found: sum(map(phase("Bound"), found)) == 20
            )
            names = [c["spec"]["volumeName"] for c in claims if phase("Bound")(c)]
            assert len(set(names)) == 20
            assert sum(map(phase("Pending"), claims)) == 5

    asyncio.run(scenario())


def test_a_claim_waits_until_a_volume_for_it_appears() -> None:
    async def scenario() -> None:
        async with world(0, scheduler=False) as cluster:
            await cluster.apply(claim("c"))
            note = await announced(cluster, "c", "FailedBinding")
            assert note == "no persistent volumes available for this claim and no storage class is set"
            await cluster.apply(volume("v", "1Gi"))
            assert (await bound(cluster, "c"))["spec"]["volumeName"] == "v"

    asyncio.run(scenario())


def test_what_is_unused_goes_although_it_is_protected() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(volume("free", "1Gi"))
            await cluster.until("PersistentVolume", "free", when=phase("Available"))
            await cluster.apply(claim("unbound", "9Gi"))
            for kind, name, where in (
                ("PersistentVolume", "free", ""),
                ("PersistentVolumeClaim", "unbound", "default"),
            ):
                found = cluster.look(kind, name, where)
                assert found is not None and len(found["metadata"]["finalizers"]) == 1
                await cluster.delete(kind, name, where)
                await cluster.gone(kind, name, where)

    asyncio.run(scenario())


def test_a_bound_claim_says_which_attributes_class_its_volume_has() -> None:
    async def scenario() -> None:
        async with world(0, scheduler=False) as cluster:
            await cluster.apply(volume("v", "1Gi", volumeAttributesClassName="gold"))
            await cluster.apply(claim("c", volumeAttributesClassName="gold"))
            assert (await bound(cluster, "c"))["status"]["currentVolumeAttributesClassName"] == "gold"

    asyncio.run(scenario())


def test_reservations_by_either_side_are_kept() -> None:
    async def scenario() -> None:
        async with world(0, scheduler=False) as cluster:
            await cluster.apply(volume("small", "1Gi"))
            await cluster.apply(volume("mine", "9Gi", claimRef={"namespace": "default", "name": "named"}))
            await cluster.apply(volume("asked-for", "5Gi"))
            await cluster.apply(claim("named"))
            await cluster.apply(claim("asking", volumeName="asked-for"))
            await cluster.apply(claim("late", volumeName="asked-for"))
            assert (await bound(cluster, "named"))["spec"]["volumeName"] == "mine"
            done = await bound(cluster, "asking")
            assert done["metadata"]["annotations"] == {BIND_COMPLETED: "yes"}, "the user chose the volume"
            assert "already bound" in await announced(cluster, "late", "FailedBinding")
            mine = cluster.look("PersistentVolume", "mine")
            assert mine is not None and BOUND_BY_CONTROLLER not in (mine["metadata"].get("annotations") or {})
            await cluster.apply(claim("greedy", "8Gi", volumeName="small"))
            assert "too small" in await announced(cluster, "greedy", "VolumeMismatch")

    asyncio.run(scenario())


def test_what_becomes_of_a_volume_when_its_claim_goes() -> None:
    async def scenario() -> None:
        async with world(0, scheduler=False) as cluster:
            await cluster.apply(volume("kept", "1Gi", persistentVolumeReclaimPolicy="Retain"))
            await cluster.apply(volume("dropped", "2Gi", persistentVolumeReclaimPolicy="Delete"))
            await cluster.apply(volume("recycled", "3Gi", persistentVolumeReclaimPolicy="Recycle"))
            for name, size in (("a", "1Gi"), ("b", "2Gi"), ("c", "3Gi")):
                await cluster.apply(claim(name, size))
                await bound(cluster, name)
            for name in "abc":
                await cluster.delete("PersistentVolumeClaim", name)
                await cluster.gone("PersistentVolumeClaim", name)
            await cluster.until("PersistentVolume", "kept", when=phase("Released"))
            await cluster.gone("PersistentVolume", "dropped")
            clean = await cluster.until("PersistentVolume", "recycled", when=phase("Available"))
            assert "claimRef" not in clean["spec"]
            await cluster.delete("PersistentVolume", "recycled")
            await cluster.gone("PersistentVolume", "recycled")
            # A new claim of the old name does not get the old data.
            again = await cluster.apply(claim("a"))
            assert again["status"]["phase"] == "Pending"
            assert await announced(cluster, "a", "FailedBinding")
            # Until the volume is freed.
            await cluster.patch("PersistentVolume", "kept", {"spec": {"claimRef": None}})
            assert (await bound(cluster, "a"))["spec"]["volumeName"] == "kept"

    asyncio.run(scenario())


def test_a_claim_whose_volume_vanished_is_lost() -> None:
    async def scenario() -> None:
        async with world(0, scheduler=False) as cluster:
            await cluster.apply(volume("v", "1Gi"))
            await cluster.apply(claim("c"))
            await bound(cluster, "c")
            await cluster.delete("PersistentVolume", "v")
            # Protected while bound: only a user who insists gets rid of it.
            await cluster.until("PersistentVolume", "v", when=lambda v: "deletionTimestamp" in v["metadata"])
            await cluster.patch("PersistentVolume", "v", {"metadata": {"finalizers": None}})
            await cluster.until("PersistentVolumeClaim", "c", when=phase("Lost"))
            assert "has lost its PersistentVolume" in await announced(cluster, "c", "ClaimLost")

    asyncio.run(scenario())


def test_a_deleted_claim_stays_while_a_pod_uses_it() -> None:
    async def scenario() -> None:
        async with world(1) as cluster:
            await cluster.apply(storage_class("now"))
            await cluster.apply(claim("c", class_="now"))
            await bound(cluster, "c")
            await cluster.apply(pod_with("user", "c"))
            await cluster.until("Pod", "user", when=phase("Running"))
            await cluster.delete("PersistentVolumeClaim", "c")
            held = cluster.look("PersistentVolumeClaim", "c")
            assert held is not None and "deletionTimestamp" in held["metadata"]
            await cluster.delete("Pod", "user")
            await cluster.gone("PersistentVolumeClaim", "c")
            await cluster.eventually("PersistentVolume", lambda found: not found)

    asyncio.run(scenario())


def test_a_disk_is_made_at_once_when_the_class_says_so() -> None:
    async def scenario() -> None:
        async with world(2, scheduler=False, topology="zones=2") as cluster:
            await cluster.apply(storage_class("now", reclaimPolicy="Retain", allowVolumeExpansion=True))
            await cluster.apply(claim("c", "7Gi", class_="now"))
            made = await volume_of(cluster, "c")
            assert made["spec"]["capacity"] == {"storage": "7Gi"}
            assert made["spec"]["persistentVolumeReclaimPolicy"] == "Retain"
            assert made["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] == DISK
            assert reach_of(made) == []
            await cluster.patch("PersistentVolumeClaim", "c", {"spec": {"resources": {"requests": {"storage": "9Gi"}}}})
            await cluster.until(
                "PersistentVolumeClaim", "c", when=lambda c: c["status"].get("capacity") == {"storage": "9Gi"}
            )
            await cluster.apply(storage_class("local-now", parameters={"local": "true"}))
            await cluster.apply(claim("d", class_="local-now"))
            (where,) = reach_of(await volume_of(cluster, "d"))
            assert where["key"] == "kubernetes.io/hostname" and where["values"][0] in ("node-00000", "node-00001")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("parameters", "key"),
    [({"local": "true"}, "kubernetes.io/hostname"), ({}, "topology.kubernetes.io/zone")],
)
def test_a_disk_that_waits_for_its_pod_is_made_where_the_pod_goes(parameters: dict[str, str], key: str) -> None:
    async def scenario() -> None:
        async with world(4, topology="zones=2") as cluster:
            await cluster.apply(storage_class("later", "WaitForFirstConsumer", parameters=parameters))
            await cluster.apply(claim("c", class_="later"))
            assert "first consumer" in await announced(cluster, "c", "WaitForFirstConsumer")
            assert cluster.all("PersistentVolume") == []
            await cluster.apply(pod_with("user", "c", nodeSelector={"kubernetes.io/hostname": "node-00002"}))
            await cluster.until("Pod", "user", when=phase("Running"))
            done = await bound(cluster, "c")
            assert done["metadata"]["annotations"][SELECTED_NODE] == "node-00002"
            node = cluster.look("Node", "node-00002")
            assert node is not None
            made = await volume_of(cluster, "c")
            assert reach_of(made) == [{"key": key, "operator": "In", "values": [node["metadata"]["labels"][key]]}]

    asyncio.run(scenario())


def test_the_scheduler_chooses_among_volumes_of_a_class_that_waits() -> None:
    async def scenario() -> None:
        async with world(2) as cluster:
            await cluster.apply(storage_class("disks", "WaitForFirstConsumer", "kubernetes.io/no-provisioner"))
            for node in ("node-00000", "node-00001"):
                term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
                reach = {"required": {"nodeSelectorTerms": [term]}}
                await cluster.apply(volume(f"on-{node}", "5Gi", "disks", nodeAffinity=reach))
            await cluster.apply(claim("c", class_="disks"))
            await cluster.apply(pod_with("user", "c", nodeSelector={"kubernetes.io/hostname": "node-00001"}))
            await cluster.until("Pod", "user", when=phase("Running"))
            assert (await bound(cluster, "c"))["spec"]["volumeName"] == "on-node-00001"
            free = cluster.look("PersistentVolume", "on-node-00000")
            assert free is not None and free["status"]["phase"] == "Available"

    asyncio.run(scenario())


def test_a_disk_for_a_node_that_is_gone_is_asked_for_again() -> None:
    async def scenario() -> None:
        async with world(1, scheduler=False) as cluster:
            body = claim("c", class_="standard")
            body["metadata"]["annotations"] = {SELECTED_NODE: "nowhere"}
            await cluster.until("StorageClass", "standard", when=bool)
            await cluster.apply(body)
            await cluster.until(
                "PersistentVolumeClaim",
                "c",
                when=lambda c: SELECTED_NODE not in (c["metadata"].get("annotations") or {}),
            )
            assert 'node "nowhere" not found' in await announced(cluster, "c", "ProvisioningFailed")

    asyncio.run(scenario())


def test_other_provisioners_are_reported_and_left_alone() -> None:
    async def scenario() -> None:
        async with world(0, scheduler=False) as cluster:
            await cluster.apply(storage_class("theirs", provisioner="csi.example.com"))
            await cluster.apply(claim("c", class_="theirs"))
            assert "csi.example.com" in await announced(cluster, "c", "ExternalProvisioning")
            found = cluster.look("PersistentVolumeClaim", "c")
            assert found is not None
            assert found["metadata"]["annotations"]["volume.kubernetes.io/storage-provisioner"] == "csi.example.com"
            assert cluster.all("PersistentVolume") == []

    asyncio.run(scenario())


def test_a_claim_that_names_no_class_gets_the_default_one() -> None:
    async def scenario() -> None:
        async with world(1) as cluster:
            default = await cluster.until("StorageClass", "standard", when=bool)
            assert default["metadata"]["annotations"]["storageclass.kubernetes.io/is-default-class"] == "true"
            assert (default["volumeBindingMode"], default["provisioner"]) == ("WaitForFirstConsumer", DISK)
            await cluster.apply(claim("open", class_=None))
            await cluster.apply(claim("none", class_=""))
            await cluster.apply(pod_with("user", "open"))
            assert (await bound(cluster, "open"))["spec"]["storageClassName"] == "standard"
            assert await announced(cluster, "none", "FailedBinding"), "an empty name means: no class"

    asyncio.run(scenario())


def test_a_default_class_of_the_users_own_is_respected_across_restarts() -> None:
    async def scenario() -> None:
        async with world(0, scheduler=False) as cluster:
            await cluster.until("StorageClass", "standard", when=bool)
            await cluster.kill_controllers()
            await cluster.delete("StorageClass", "standard")
            mine = storage_class("mine")
            mine["metadata"]["annotations"] = {"storageclass.kubernetes.io/is-default-class": "true"}
            await cluster.apply(mine)
            await cluster.start_controllers()
            await cluster.apply(claim("open", class_=None))
            assert (await bound(cluster, "open"))["spec"]["storageClassName"] == "mine"
            assert cluster.names("StorageClass") == ["mine"]

    asyncio.run(scenario())


def database(replicas: int) -> Json:
    data = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db"},
        "spec": {
            "replicas": replicas,
            "serviceName": "db",
            "selector": {"matchLabels": {"app": "db"}},
            "template": template("100m", app="db"),
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": data}],
        },
    }


def test_a_stateful_set_with_claim_templates_runs() -> None:
    async def scenario() -> None:
        async with world(3) as cluster:
            await cluster.apply(database(3))
            await cluster.until("StatefulSet", "db", when=lambda s: s.get("status", {}).get("readyReplicas") == 3)
            assert cluster.names("PersistentVolumeClaim") == ["data-db-0", "data-db-1", "data-db-2"]
            claims = cluster.all("PersistentVolumeClaim")
            assert all(map(phase("Bound"), claims))
            assert len({c["spec"]["volumeName"] for c in claims}) == 3

    asyncio.run(scenario())


def test_a_stateful_set_with_claim_templates_runs_in_a_whole_cluster(start_cluster: Callable[..., Any]) -> None:
    cluster = start_cluster(nodes=3)
    sets = "/apis/apps/v1/namespaces/default/statefulsets"
    made = cluster.create(sets, database(2))
    with cluster.watch(sets, resourceVersion=made["metadata"]["resourceVersion"]) as watch:
        for _, found in iter(watch.next, None):
            if found.get("status", {}).get("readyReplicas") == 2:
                break
    claims = cluster.get("/api/v1/namespaces/default/persistentvolumeclaims")["items"]
    assert [c["status"]["phase"] for c in claims] == ["Bound", "Bound"]
    classes = cluster.get("/apis/storage.k8s.io/v1/storageclasses")["items"]
    assert [c["metadata"]["name"] for c in classes] == ["standard"]


def test_without_controllers_there_is_no_storage_class(server: Any) -> None:
    assert server.get("/apis/storage.k8s.io/v1/storageclasses")["items"] == []


def test_a_pod_with_an_ephemeral_volume_runs_and_takes_its_claim_with_it() -> None:
    async def scenario() -> None:
        async with world(1) as cluster:
            spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
            ephemeral = {"volumeClaimTemplate": {"metadata": {"labels": {"kind": "scratch"}}, "spec": spec}}
            body = pod_with("user", "-")
            body["spec"]["volumes"] = [{"name": "scratch", "ephemeral": ephemeral}]
            await cluster.apply(body)
            await cluster.until("Pod", "user", when=phase("Running"))
            made = await bound(cluster, "user-scratch")
            assert made["metadata"]["labels"] == {"kind": "scratch"}
            await cluster.delete("Pod", "user")
            await cluster.gone("PersistentVolumeClaim", "user-scratch")
            await cluster.eventually("PersistentVolume", lambda found: not found)

    asyncio.run(scenario())


@pytest.mark.parametrize("writes", range(1, 5))
def test_a_provisioner_killed_half_way_makes_one_disk(writes: int) -> None:
    async def scenario() -> None:
        async with world(0, scheduler=False, controllers=False) as cluster:
            await cluster.apply(storage_class("now"))
            mine = {"metadata": {"annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}}
            await cluster.patch("StorageClass", "now", mine)
            dying = DyingClient(cluster.client, writes)
            await cluster.start_controllers(dying)
            await cluster.apply(claim("c", class_="now"))
            await asyncio.wait_for(dying.died.wait(), 90)
            await cluster.kill_controllers()
            await cluster.start_controllers()
            made = await volume_of(cluster, "c")
            assert cluster.names("PersistentVolume") == [made["metadata"]["name"]]

    asyncio.run(scenario())
