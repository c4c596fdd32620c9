"""StatefulSets: names that stay, order, partitions, claims."""

from __future__ import annotations

import asyncio

import pytest

from support.controller_world import DyingClient, Json, image_of, world
from support.manifests import container, stateful_set, template
from support.states import set_done


def new_image(image: str) -> Json:
    return {"spec": {"template": {"spec": {"containers": [container("100m") | {"image": image}]}}}}


def is_ready(pod: Json) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod.get("status", {}).get("conditions", ()))


def test_pods_come_one_after_the_other_with_names_that_stay() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            order: list[str] = []

            def watch(pods: list[Json]) -> bool:
                for pod in pods:
                    if pod["metadata"]["name"] not in order:
                        earlier = [p for p in pods if p["metadata"]["name"] in order]
                        assert all(map(is_ready, earlier)), "the one before must be ready"
                        order.append(pod["metadata"]["name"])
                return len(pods) == 3 and all(map(is_ready, pods))

            await cluster.apply(stateful_set("db", 3))
            pods = await cluster.eventually("Pod", watch)
            assert order == ["db-0", "db-1", "db-2"]
            found = await set_done(cluster, "db")
            for number, pod in enumerate(pods):
                labels = pod["metadata"]["labels"]
                assert labels["statefulset.kubernetes.io/pod-name"] == f"db-{number}"
                assert labels["apps.kubernetes.io/pod-index"] == str(number)
                assert labels["controller-revision-hash"] == found["status"]["currentRevision"]
                assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == (f"db-{number}", "db-svc")
            uid = pods[1]["metadata"]["uid"]
            await cluster.delete("Pod", "db-1")
            await cluster.until("Pod", "db-1", when=lambda pod: pod["metadata"]["uid"] != uid and is_ready(pod))

    asyncio.run(scenario())


def test_scaling_down_takes_the_highest_first_one_at_a_time() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(stateful_set("db", 4))
            await set_done(cluster, "db")
            seen: list[list[str]] = []

            def watch(pods: list[Json]) -> bool:
                going = [p["metadata"]["name"] for p in pods if "deletionTimestamp" in p["metadata"]]
                assert len(going) <= 1
                seen.append([p["metadata"]["name"] for p in pods])
                return len(pods) == 1

            await cluster.patch("StatefulSet", "db", {"spec": {"replicas": 1}}, subresource="scale")
            await cluster.eventually("Pod", watch)
            steps = [names for number, names in enumerate(seen) if number == 0 or seen[number - 1] != names]
            assert steps == [["db-0", "db-1", "db-2", "db-3"][:count] for count in (4, 3, 2, 1)]

    asyncio.run(scenario())


def test_parallel_starts_all_at_once() -> None:
    async def scenario() -> None:
        async with world(scheduler=False) as cluster:
            spec = {"podManagementPolicy": "Parallel", "ordinals": {"start": 5}}
            await cluster.apply(stateful_set("sim", 3, **spec))
            pods = await cluster.eventually("Pod", lambda pods: len(pods) == 3)
            assert [pod["metadata"]["name"] for pod in pods] == ["sim-5", "sim-6", "sim-7"]

    asyncio.run(scenario())


def test_a_partition_keeps_the_lower_pods_on_the_old_template() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            strategy = {"type": "RollingUpdate", "rollingUpdate": {"partition": 2}}
            await cluster.apply(stateful_set("db", 3, updateStrategy=strategy))
            await set_done(cluster, "db")
            await cluster.patch("StatefulSet", "db", new_image("v2"))
            found = await cluster.until(
                "StatefulSet",
                "db",
                when=lambda s: s["status"].get("updatedReplicas") == 1 and s["status"].get("readyReplicas") == 3,
            )
            assert [image_of(pod) for pod in cluster.all("Pod")] == ["v1", "v1", "v2"]
            assert found["status"]["currentRevision"] != found["status"]["updateRevision"]
            uid = cluster.all("Pod")[0]["metadata"]["uid"]
            await cluster.delete("Pod", "db-0")
            again = await cluster.until("Pod", "db-0", when=lambda p: p["metadata"]["uid"] != uid and is_ready(p))
            assert image_of(again) == "v1", "below the partition a lost pod comes back as it was"
            change = {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 0}}}}
            await cluster.patch("StatefulSet", "db", change)
            await set_done(cluster, "db")
            assert [image_of(pod) for pod in cluster.all("Pod")] == ["v2", "v2", "v2"]

    asyncio.run(scenario())


@pytest.mark.parametrize(("policy", "unavailable"), [("OrderedReady", 1), ("Parallel", 2), ("OrderedReady", 3)])
def test_a_roll_takes_no_more_than_allowed_from_the_highest_down(policy: str, unavailable: int) -> None:
    async def scenario() -> None:
        async with world() as cluster:
            strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": unavailable}}
            await cluster.apply(stateful_set("db", 5, updateStrategy=strategy, podManagementPolicy=policy))
            await set_done(cluster, "db")
            worst = 0

            def watch(pods: list[Json]) -> bool:
                nonlocal worst
                well = [p for p in pods if is_ready(p) and "deletionTimestamp" not in p["metadata"]]
                worst = max(worst, 5 - len(well))
                return len(well) == 5 and {image_of(p) for p in pods} == {"v2"}

            await cluster.patch("StatefulSet", "db", new_image("v2"))
            await cluster.eventually("Pod", watch)
            assert worst == unavailable
            await set_done(cluster, "db")

    asyncio.run(scenario())


def test_on_delete_waits_for_the_user() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(stateful_set("db", 2, updateStrategy={"type": "OnDelete"}))
            await set_done(cluster, "db")
            await cluster.patch("StatefulSet", "db", new_image("v2"))
            await cluster.until(
                "StatefulSet", "db", when=lambda s: s["status"]["updateRevision"] != s["status"]["currentRevision"]
            )
            assert [image_of(pod) for pod in cluster.all("Pod")] == ["v1", "v1"]
            await cluster.delete("Pod", "db-1")
            await cluster.until("Pod", "db-1", when=lambda pod: image_of(pod) == "v2" and is_ready(pod))
            assert [image_of(pod) for pod in cluster.all("Pod")] == ["v1", "v2"]

    asyncio.run(scenario())


def claims(**policy: str) -> Json:
    claim = {
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    found: Json = {"volumeClaimTemplates": [claim]}
    return found | ({"persistentVolumeClaimRetentionPolicy": policy} if policy else {})


def test_claims_are_made_before_the_pods_and_kept() -> None:
    async def scenario() -> None:
        async with world(scheduler=False) as cluster:
            await cluster.apply(stateful_set("db", 2, podManagementPolicy="Parallel", **claims()))
            pods = await cluster.eventually("Pod", lambda pods: len(pods) == 2)
            assert cluster.names("PersistentVolumeClaim") == ["data-db-0", "data-db-1"]
            volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data-db-1"}}
            assert volume in pods[1]["spec"]["volumes"]
            await cluster.patch("StatefulSet", "db", {"spec": {"replicas": 0}})
            await cluster.eventually("Pod", lambda pods: not pods)
            await cluster.delete("StatefulSet", "db", propagation="Foreground")
            await cluster.gone("StatefulSet", "db")
            assert cluster.names("PersistentVolumeClaim") == ["data-db-0", "data-db-1"]

    asyncio.run(scenario())


@pytest.mark.parametrize("policy", ["OrderedReady", "Parallel"])
def test_a_claim_that_is_deleted_while_its_pod_waits_for_a_node_is_made_again(policy: str) -> None:
    async def scenario() -> None:
        async with world(scheduler=False) as cluster:
            await cluster.apply(stateful_set("db", 1, podManagementPolicy=policy, **claims()))
            await cluster.eventually("Pod", lambda pods: len(pods) == 1)
            (claim,) = cluster.all("PersistentVolumeClaim")
            uid = claim["metadata"]["uid"]
            await cluster.delete("PersistentVolumeClaim", "data-db-0")
            await cluster.eventually(
                "PersistentVolumeClaim", lambda found: len(found) == 1 and found[0]["metadata"]["uid"] != uid
            )

    asyncio.run(scenario())


def test_claims_go_when_the_set_asks_for_it() -> None:
    async def scenario() -> None:
        async with world(scheduler=False) as cluster:
            policy = claims(whenScaled="Delete", whenDeleted="Delete")
            await cluster.apply(stateful_set("db", 3, podManagementPolicy="Parallel", **policy))
            await cluster.eventually("Pod", lambda pods: len(pods) == 3)
            await cluster.patch("StatefulSet", "db", {"spec": {"replicas": 2}})
            await cluster.eventually("PersistentVolumeClaim", lambda found: len(found) == 2)
            await cluster.delete("StatefulSet", "db", propagation="Background")
            await cluster.eventually("PersistentVolumeClaim", lambda found: not found)

    asyncio.run(scenario())


def test_a_claim_that_another_controller_has_stays() -> None:
    async def scenario() -> None:
        async with world(scheduler=False) as cluster:
            policy = claims(whenScaled="Delete", whenDeleted="Delete")
            await cluster.apply(stateful_set("db", 2, podManagementPolicy="Parallel", **policy))
            await cluster.eventually("Pod", lambda pods: len(pods) == 2)
            other = await cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "other"}})
            whose = {"apiVersion": "v1", "kind": "ConfigMap", "name": "other", "uid": other["metadata"]["uid"]}
            theirs = {"metadata": {"ownerReferences": [{**whose, "controller": True}]}}
            await cluster.patch("PersistentVolumeClaim", "data-db-1", theirs)
            await cluster.patch("StatefulSet", "db", {"spec": {"replicas": 0}})
            await cluster.eventually("Pod", lambda pods: not pods)
            await cluster.eventually("PersistentVolumeClaim", lambda found: len(found) == 1)
            assert cluster.names("PersistentVolumeClaim") == ["data-db-1"]

    asyncio.run(scenario())


def test_whose_the_claims_are_follows_a_policy_that_changes() -> None:
    async def scenario() -> None:
        async with world(scheduler=False) as cluster:
            await cluster.apply(stateful_set("db", 2, podManagementPolicy="Parallel", **claims()))
            await cluster.eventually("Pod", lambda pods: len(pods) == 2)

            def owned(found: list[Json]) -> list[bool]:
                return [bool(claim["metadata"].get("ownerReferences")) for claim in found]

            assert owned(cluster.all("PersistentVolumeClaim")) == [False, False]
            for policy, expected in (("Delete", True), ("Retain", False)):
                requested = {"persistentVolumeClaimRetentionPolicy": {"whenDeleted": policy, "whenScaled": "Retain"}}
                await cluster.patch("StatefulSet", "db", {"spec": requested})
                await cluster.eventually("PersistentVolumeClaim", lambda found, e=expected: owned(found) == [e, e])

    asyncio.run(scenario())


def test_an_unrelated_pod_with_the_name_of_a_pod_is_waited_for() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            unrelated = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "db-0"},
                "spec": template("100m", app="other")["spec"],
            }
            before = await cluster.apply(unrelated)
            await cluster.apply(stateful_set("db", 1))
            await cluster.until("StatefulSet", "db", when=lambda s: "updateRevision" in s.get("status", {}))
            found = cluster.look("Pod", "db-0")
            assert found is not None and found["metadata"]["uid"] == before["metadata"]["uid"]
            await cluster.delete("Pod", "db-0")
            await set_done(cluster, "db")

    asyncio.run(scenario())


def test_going_back_renumbers_the_old_revision() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(stateful_set("db", 1))
            first = (await set_done(cluster, "db"))["status"]["updateRevision"]
            await cluster.patch("StatefulSet", "db", new_image("v2"))
            await set_done(cluster, "db")
            await cluster.patch("StatefulSet", "db", new_image("v1"))
            found = await set_done(cluster, "db")
            assert found["status"]["updateRevision"] == first
            numbers = {rev["metadata"]["name"]: rev["revision"] for rev in cluster.all("ControllerRevision")}
            assert len(numbers) == 2 and numbers[first] == 3

    asyncio.run(scenario())


@pytest.mark.parametrize("writes", [1, 2, 3, 5])
def test_killed_at_any_write_it_ends_up_the_same(writes: int) -> None:
    async def scenario() -> None:
        async with world(controllers=False) as cluster:
            dying = DyingClient(cluster.client, writes)
            await cluster.start_controllers(dying)
            await cluster.apply(stateful_set("db", 3, podManagementPolicy="Parallel"))
            await asyncio.wait_for(dying.died.wait(), 90)
            await cluster.kill_controllers()
            await cluster.start_controllers()
            await set_done(cluster, "db")
            assert cluster.names("Pod") == ["db-0", "db-1", "db-2"]
            assert len(cluster.all("ControllerRevision")) == 1

    asyncio.run(scenario())
