"""LeaderWorkerSets in a running cluster: groups of leader and workers that start, scale, roll and restart as units."""

from __future__ import annotations

import asyncio

import pytest

from support.controller_world import Json, condition, image_of, world
from support.lws_objects import P, done, env, group_of, lws, new_image
from support.manifests import template


def test_names_labels_and_environment() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(lws("vllm", 2, 4))
            found = await done(cluster, "vllm")
            names = ["vllm-0", "vllm-0-1", "vllm-0-2", "vllm-0-3", "vllm-1", "vllm-1-1", "vllm-1-2", "vllm-1-3"]
            assert cluster.names("Pod") == names
            assert cluster.names("StatefulSet") == ["vllm", "vllm-0", "vllm-1"]
            assert cluster.names("Service") == ["vllm"]
            (revision,) = [
                rev
                for rev in cluster.all("ControllerRevision")
                if f"{P}name" in rev["metadata"]["labels"]
                and rev["metadata"]["ownerReferences"][0]["kind"] == "LeaderWorkerSet"
            ]
            digest = revision["metadata"]["labels"][f"{P}template-revision-hash"]
            assert revision["metadata"]["name"] == f"vllm-{digest}-1"
            leader, worker = cluster.look("Pod", "vllm-0"), cluster.look("Pod", "vllm-1-2")
            assert leader is not None and worker is not None
            key = "3026934fa959105a39223221cf76941a46fb01bb"
            expected = {"name": "vllm", "worker-index": "0", "group-index": "0", "group-key": key}
            assert {f"{P}{k}": v for k, v in expected.items()}.items() <= leader["metadata"]["labels"].items()
            expected = {"name": "vllm", "worker-index": "2", "group-index": "1", "template-revision-hash": digest}
            expected["group-key"] = "e6a61a33965cdc1b5d2bd5672fa0b88b1518a5a7"
            assert {f"{P}{k}": v for k, v in expected.items()}.items() <= worker["metadata"]["labels"].items()
            assert f"{P}leader-name" not in leader["metadata"].get("annotations", {})
            assert worker["metadata"]["annotations"][f"{P}leader-name"] == "vllm-1"
            assert worker["metadata"]["annotations"][f"{P}size"] == "4"
            assert env(worker) == {
                "LWS_LEADER_ADDRESS": "vllm-1.vllm.default",
                "LWS_GROUP_SIZE": "4",
                "LWS_WORKER_INDEX": "2",
            }
            assert env(leader)["LWS_LEADER_ADDRESS"] == "vllm-0.vllm.default"
            workers = cluster.look("StatefulSet", "vllm-1")
            assert workers is not None and workers["metadata"]["ownerReferences"][0]["kind"] == "Pod"
            assert workers["spec"]["ordinals"] == {"start": 1}
            assert found["status"]["hpaPodSelector"] == f"{P}name=vllm,{P}worker-index=0"
            assert not any(map(group_of, cluster.all("Pod"))), "no groups were asked for"
            assert not cluster.all("PodGroup") and not cluster.all("Workload")

    asyncio.run(scenario())


def test_subdomains_of_their_own() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(lws("vllm", 2, 2, networkConfig={"subdomainPolicy": "UniquePerReplica"}))
            await done(cluster, "vllm")
            assert cluster.names("Service") == ["vllm-0", "vllm-1"]
            worker = cluster.look("Pod", "vllm-1-1")
            assert worker is not None and env(worker)["LWS_LEADER_ADDRESS"] == "vllm-1.vllm-1.default"
            await cluster.patch("LeaderWorkerSet", "vllm", {"spec": {"replicas": 1}}, subresource="scale")
            await cluster.gone("Service", "vllm-1")

    asyncio.run(scenario())


def test_every_replica_is_a_gang_whose_group_comes_first() -> None:
    async def scenario() -> None:
        async with world(scheduler=False) as cluster:
            orphans: list[str] = []

            def watch(pods: list[Json]) -> bool:
                known = set(cluster.names("PodGroup"))
                orphans.extend(pod["metadata"]["name"] for pod in pods if group_of(pod) not in known)
                return len(pods) == 8

            await cluster.apply(lws("vllm", 2, 4, scheduling={}))
            pods = await cluster.eventually("Pod", watch)
            assert not orphans, "no pod may exist before its group"
            (workload,) = cluster.all("Workload")
            assert workload["metadata"]["name"] == "vllm"
            reference = {"apiGroup": "leaderworkerset.x-k8s.io", "kind": "LeaderWorkerSet", "name": "vllm"}
            assert workload["spec"]["controllerRef"] == reference
            (plan,) = workload["spec"]["podGroupTemplates"]
            assert (plan["name"], plan["schedulingPolicy"]) == ("replica", {"gang": {"minCount": 4}})
            digest = pods[0]["metadata"]["labels"][f"{P}template-revision-hash"]
            groups = {group["metadata"]["name"]: group for group in cluster.all("PodGroup")}
            assert sorted(groups) == [f"vllm-0-{digest}", f"vllm-1-{digest}"]
            group = groups[f"vllm-1-{digest}"]
            assert group["spec"]["workloadRef"] == {"workloadName": "vllm", "templateName": "replica"}
            assert group["metadata"]["labels"] == {
                f"{P}name": "vllm",
                f"{P}group-index": "1",
                f"{P}template-revision-hash": digest,
            }
            assert group["metadata"]["ownerReferences"][0]["kind"] == "LeaderWorkerSet"
            for pod in pods:
                index = pod["metadata"]["labels"][f"{P}group-index"]
                assert group_of(pod) == f"vllm-{index}-{digest}"

    asyncio.run(scenario())


def test_leader_first_needs_one_pod_and_tells_what_the_rest_will_need() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            leader_alone = []

            def watch(pods: list[Json]) -> bool:
                leaders = [p for p in pods if p["metadata"]["name"] == "vllm-0"]
                workers = [p for p in pods if p["metadata"]["name"] != "vllm-0"]
                if workers and condition(leaders[0], "Ready").get("status") != "True":
                    leader_alone.append(workers)
                return len(pods) == 4

            await cluster.apply(lws("vllm", 1, 4, scheduling={}, startupPolicy="LeaderReady"))
            await cluster.eventually("Pod", watch)
            assert not leader_alone, "workers come after their leader is ready"
            (group,) = cluster.all("PodGroup")
            assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 1}}
            assert group["metadata"]["annotations"]["scheduling.phalanx.dev/min-resources"] == '{"cpu": "400m"}'
            await done(cluster, "vllm")

    asyncio.run(scenario())


@pytest.mark.parametrize("surge", [0, 1])
def test_a_roll_replaces_groups_from_the_highest_down_and_their_pod_groups_with_them(surge: int) -> None:
    async def scenario() -> None:
        async with world() as cluster:
            rolling = {"rollingUpdateConfiguration": {"maxUnavailable": 1 - surge, "maxSurge": surge}}
            await cluster.apply(lws("vllm", 3, 2, scheduling={}, rolloutStrategy=rolling | {"type": "RollingUpdate"}))
            await done(cluster, "vllm")
            before = cluster.names("PodGroup")
            orphans: list[str] = []
            fewest, most, order = 9, 0, []

            def watch(pods: list[Json]) -> bool:
                nonlocal fewest, most
                known = set(cluster.names("PodGroup"))
                orphans.extend(pod["metadata"]["name"] for pod in pods if group_of(pod) not in known)
                leaders = [p for p in pods if p["metadata"]["labels"][f"{P}worker-index"] == "0"]
                well = [
                    p
                    for p in leaders
                    if "deletionTimestamp" not in p["metadata"] and condition(p, "Ready").get("status") == "True"
                ]
                fewest, most = min(fewest, len(well)), max(most, len(leaders))
                for pod in leaders:
                    if image_of(pod) == "v2" and pod["metadata"]["name"] not in order:
                        order.append(pod["metadata"]["name"])
                return len(pods) == 6 and {image_of(pod) for pod in pods} == {"v2"}

            await cluster.patch("LeaderWorkerSet", "vllm", new_image("v2"))
            await cluster.eventually("Pod", watch)
            await done(cluster, "vllm")
            assert not orphans
            assert order == (["vllm-3"] if surge else []) + ["vllm-2", "vllm-1", "vllm-0"]
            assert (fewest, most) == ((3, 4) if surge else (2, 3))
            groups = await cluster.eventually("PodGroup", lambda groups: len(groups) == 3)
            assert not {group["metadata"]["name"] for group in groups} & set(before)
            owned = [
                rev
                for rev in cluster.all("ControllerRevision")
                if rev["metadata"]["ownerReferences"][0]["kind"] == "LeaderWorkerSet"
            ]
            assert [rev["revision"] for rev in owned] == [2], "older revisions are forgotten"

    asyncio.run(scenario())


def test_a_resize_rolls_and_the_new_gangs_have_the_new_size() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(lws("vllm", 2, 2, scheduling={}))
            await done(cluster, "vllm")
            await cluster.patch("LeaderWorkerSet", "vllm", {"spec": {"leaderWorkerTemplate": {"size": 4}}})
            await done(cluster, "vllm")
            await cluster.eventually("Pod", lambda pods: len(pods) == 8)
            groups = await cluster.eventually("PodGroup", lambda groups: len(groups) == 2)
            assert [group["spec"]["schedulingPolicy"]["gang"]["minCount"] for group in groups] == [4, 4]

    asyncio.run(scenario())


def test_below_the_partition_groups_stay_as_they_were_even_when_lost() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            rolling = {"type": "RollingUpdate", "rollingUpdateConfiguration": {"partition": 1}}
            await cluster.apply(lws("vllm", 2, 2, scheduling={}, rolloutStrategy=rolling))
            await cluster.until(
                "LeaderWorkerSet", "vllm", when=lambda o: condition(o, "Available").get("status") == "True"
            )
            await cluster.patch("LeaderWorkerSet", "vllm", new_image("v2"))

            def half(pods: list[Json]) -> bool:
                images = {p["metadata"]["name"]: image_of(p) for p in pods}
                return images == {"vllm-0": "v1", "vllm-0-1": "v1", "vllm-1": "v2", "vllm-1-1": "v2"}

            await cluster.eventually("Pod", half)
            uid = (cluster.look("Pod", "vllm-0") or {})["metadata"]["uid"]
            await cluster.delete("Pod", "vllm-0")
            again = await cluster.until("Pod", "vllm-0", when=lambda p: p["metadata"]["uid"] != uid)
            assert image_of(again) == "v1"
            await cluster.eventually("Pod", half)
            groups = cluster.names("PodGroup")
            assert all(group_of(pod) in groups for pod in cluster.all("Pod"))
            change = {"spec": {"rolloutStrategy": {"rollingUpdateConfiguration": {"partition": 0}}}}
            await cluster.patch("LeaderWorkerSet", "vllm", change)
            await done(cluster, "vllm")
            pods = await cluster.eventually("Pod", lambda pods: len(pods) == 4)
            assert {image_of(pod) for pod in pods} == {"v2"}

    asyncio.run(scenario())


def test_scaling_up_and_down_brings_and_takes_whole_groups() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(lws("vllm", 1, 3, scheduling={}))
            await done(cluster, "vllm")
            await cluster.patch("LeaderWorkerSet", "vllm", {"spec": {"replicas": 3}}, subresource="scale")
            await done(cluster, "vllm")
            assert len(cluster.names("Pod")) == 9 and len(cluster.names("PodGroup")) == 3
            await cluster.patch("LeaderWorkerSet", "vllm", {"spec": {"replicas": 1}}, subresource="scale")
            await cluster.eventually("Pod", lambda pods: len(pods) == 3)
            await cluster.eventually("PodGroup", lambda groups: len(groups) == 1)
            await done(cluster, "vllm")
            await cluster.delete("LeaderWorkerSet", "vllm", propagation="Background")
            for kind in ("Pod", "StatefulSet", "PodGroup", "Workload", "ControllerRevision"):
                await cluster.eventually(kind, lambda found: not found)
            assert not cluster.names("Service")

    asyncio.run(scenario())


@pytest.mark.parametrize("how", ["deleted", "force-deleted", "restarted"])
def test_one_lost_worker_recreates_the_whole_group(how: str) -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(lws("vllm", 2, 3, scheduling={}))
            await done(cluster, "vllm")
            before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in cluster.all("Pod")}
            if how == "deleted":
                await cluster.delete("Pod", "vllm-1-2")
            elif how == "force-deleted":
                await cluster.delete("Pod", "vllm-1-2", grace_seconds=0)
            else:
                end = {"metadata": {"annotations": {"simulation.phalanx.dev/run-seconds": "0"}}}
                await cluster.patch("Pod", "vllm-1-2", end)

            def recomputed(pods: list[Json]) -> bool:
                fresh = {
                    p["metadata"]["name"] for p in pods if before.get(p["metadata"]["name"]) != p["metadata"]["uid"]
                }
                return len(pods) == 6 and fresh == {"vllm-1", "vllm-1-1", "vllm-1-2"}

            await cluster.eventually("Pod", recomputed)
            await done(cluster, "vllm")
            kept = [p["metadata"]["uid"] for p in cluster.all("Pod") if p["metadata"]["name"].startswith("vllm-0")]
            assert set(kept) <= set(before.values())

    asyncio.run(scenario())


def test_claims_of_a_template_are_mounted_and_a_deleted_service_comes_back() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
            worker = template("100m", app="vllm")
            worker["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
            claims = [{"metadata": {"name": "data"}, "spec": claim}]
            await cluster.apply(lws("vllm", 1, 2, template={"workerTemplate": worker, "volumeClaimTemplates": claims}))
            await cluster.eventually("Pod", lambda pods: len(pods) == 2)
            assert cluster.names("PersistentVolumeClaim") == ["data-vllm-0", "data-vllm-0-1"]
            before = cluster.look("Service", "vllm")
            assert before is not None
            await cluster.delete("Service", "vllm")
            await cluster.until(
                "Service", "vllm", when=lambda found: found["metadata"]["uid"] != before["metadata"]["uid"]
            )

    asyncio.run(scenario())


def test_events_say_how_it_goes() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(lws("vllm", 2, 2))
            await done(cluster, "vllm")
            await cluster.patch("LeaderWorkerSet", "vllm", new_image("v2"))
            await done(cluster, "vllm")
            wanted = {"CreatingRevision", "GroupsProgressing", "GroupsUpdating", "AllGroupsReady"}
            await cluster.eventually("Event", lambda found: wanted <= {event["reason"] for event in found})

    asyncio.run(scenario())


def test_restart_policy_none_replaces_only_the_pod() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(lws("vllm", 1, 3, template={"restartPolicy": "None"}))
            await done(cluster, "vllm")
            before = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in cluster.all("Pod")}
            await cluster.delete("Pod", "vllm-0-2")
            await cluster.until("Pod", "vllm-0-2", when=lambda p: p["metadata"]["uid"] != before["vllm-0-2"])
            await done(cluster, "vllm")
            after = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in cluster.all("Pod")}
            assert {name for name in after if after[name] != before[name]} == {"vllm-0-2"}

    asyncio.run(scenario())


def test_exclusive_placement_without_groups_puts_workers_where_their_leader_is() -> None:
    async def scenario() -> None:
        async with world(nodes=4, topology="racks=2") as cluster:
            rack = "topology.phalanx.dev/rack"
            await cluster.apply(lws("vllm", 2, 2, annotations={f"{P}exclusive-topology": rack}))
            await done(cluster, "vllm")
            racks = {n["metadata"]["name"]: n["metadata"]["labels"][rack] for n in cluster.all("Node", "")}
            used: dict[str, set[str]] = {}
            for pod in cluster.all("Pod"):
                used.setdefault(pod["metadata"]["labels"][f"{P}group-index"], set()).add(racks[pod["spec"]["nodeName"]])
            assert [len(found) for found in used.values()] == [1, 1] and used["0"] != used["1"]

    asyncio.run(scenario())


def test_exclusive_placement_of_groups_is_the_topology_of_the_group() -> None:
    async def scenario() -> None:
        async with world(nodes=4, topology="racks=2") as cluster:
            rack = "topology.phalanx.dev/rack"
            await cluster.apply(lws("vllm", 2, 2, scheduling={}, annotations={f"{P}exclusive-topology": rack}))
            await done(cluster, "vllm")
            for group in cluster.all("PodGroup"):
                assert group["spec"]["schedulingConstraints"] == {"topology": [{"key": rack}]}
            racks = {n["metadata"]["name"]: n["metadata"]["labels"][rack] for n in cluster.all("Node", "")}
            used: dict[str, set[str]] = {}
            for pod in cluster.all("Pod"):
                used.setdefault(pod["metadata"]["labels"][f"{P}group-index"], set()).add(racks[pod["spec"]["nodeName"]])
            assert [len(found) for found in used.values()] == [1, 1] and used["0"] != used["1"]

    asyncio.run(scenario())


def test_subgroups_with_a_topology_are_groups_below_the_replica() -> None:
    async def scenario() -> None:
        async with world(nodes=4, topology="racks=2") as cluster:
            rack = "topology.phalanx.dev/rack"
            await cluster.apply(
                lws(
                    "vllm",
                    1,
                    5,
                    scheduling={},
                    template={"subGroupPolicy": {"subGroupSize": 2}},
                    annotations={f"{P}subgroup-exclusive-topology": rack},
                )
            )
            await done(cluster, "vllm")
            (whole,) = cluster.all("CompositePodGroup")
            assert whole["spec"]["schedulingPolicy"] == {"gang": {"minGroupCount": 2}}
            counts = [group["spec"]["schedulingPolicy"]["gang"]["minCount"] for group in cluster.all("PodGroup")]
            assert counts == [3, 2], "the leader is one more in subgroup 0"
            indexes = {
                pod["metadata"]["name"]: pod["metadata"]["labels"][f"{P}subgroup-index"] for pod in cluster.all("Pod")
            }
            assert indexes == {"vllm-0": "0", "vllm-0-1": "0", "vllm-0-2": "0", "vllm-0-3": "1", "vllm-0-4": "1"}
            name = whole["metadata"]["name"]
            assert {pod["metadata"]["name"]: group_of(pod) for pod in cluster.all("Pod")} == {
                pod: f"{name}-{index}" for pod, index in indexes.items()
            }

    asyncio.run(scenario())


def test_the_first_workload_version_on_request() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            annotations = {"scheduling.phalanx.dev/gang": "true", "scheduling.phalanx.dev/api": "v1alpha1"}
            await cluster.apply(lws("vllm", 2, 2, annotations=annotations))
            await done(cluster, "vllm")
            assert cluster.names("Workload") == ["w-vllm"] and not cluster.all("PodGroup")
            worker = cluster.look("Pod", "vllm-1-1")
            assert worker is not None
            assert worker["spec"]["workloadRef"] == {"name": "w-vllm", "podGroup": "gg", "podGroupReplicaKey": "1"}

    asyncio.run(scenario())
