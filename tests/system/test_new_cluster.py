"""Clusters that serve groups themselves: links by field, and hands off where upstream makes the groups."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from phalanx.base import informer
from phalanx.base.client import Call, Client, Resource, WatchEvent
from phalanx.base.errors import Forbidden
from phalanx.controllers.cluster_mode.controllers import ClusterControllers
from phalanx.controllers.cluster_mode.linking import Abilities
from phalanx.controllers.cluster_mode.writer import OtherManager
from phalanx.controllers.workloads.job.grouping import group_job
from phalanx.kube.group_api import GroupApi
from phalanx.kube.lease import LeaseSettings
from phalanx.model.gates import Gates
from support.cluster_mode import OFF, InCluster, gang_job, group_of, jobset_of, play, running
from support.manifests import template

Json = dict[str, Any]
NATIVE = Gates({"WorkloadWithJob": False})  # groups are served, the Job controller makes none


def test_pods_are_linked_by_the_field_where_the_server_keeps_it() -> None:
    async def scenario(cluster: InCluster) -> None:
        await cluster.apply(gang_job("train", 3))
        found = await cluster.eventually("Pod", running(3))
        (group,) = cluster.all("PodGroup")
        assert group["apiVersion"] == "scheduling.k8s.io/v1beta1"
        assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in found} == {group["metadata"]["name"]}
        assert not any(group_of(pod) for pod in found)

    play(scenario, gates=NATIVE, custom=False)


def test_groups_that_the_job_controller_makes_itself_are_left_to_it() -> None:
    async def scenario(cluster: InCluster) -> None:
        await cluster.apply(gang_job("train", 3, suspend=True))
        (theirs,) = await cluster.eventually("PodGroup", bool)
        await cluster.start_phalanx()
        assert "groups are left to it" in await cluster.announced("GroupsHandedOver")
        await cluster.patch("Job", "train", {"spec": {"suspend": False}})
        found = await cluster.eventually("Pod", running(3))
        (group,) = cluster.all("PodGroup")
        assert group["metadata"]["uid"] == theirs["metadata"]["uid"]
        assert "app.kubernetes.io/managed-by" not in (group["metadata"].get("labels") or {})
        assert {pod["spec"]["schedulerName"] for pod in found} == {"default-scheduler"}

    play(scenario, gates=Gates(), custom=False, phalanx=False)


def test_both_at_once_end_with_one_set_of_groups() -> None:
    async def scenario(cluster: InCluster) -> None:
        for number in range(10):
            await cluster.apply(gang_job(f"train-{number}", 2))
        await cluster.eventually("Pod", running(20))
        groups = cluster.all("PodGroup")
        assert len(groups) == len(cluster.all("Workload")) == 10
        for pod in cluster.all("Pod"):
            assert pod["spec"]["schedulingGroup"]["podGroupName"] in {group["metadata"]["name"] for group in groups}

    play(scenario, gates=Gates(), custom=False)


def test_a_workload_that_names_its_group_is_left_alone() -> None:
    async def scenario(cluster: InCluster) -> None:
        body = {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "mine"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
        }
        await cluster.apply(body)
        await cluster.apply(gang_job("train", 2, pod={"schedulingGroup": {"podGroupName": "mine"}}))
        found = await cluster.eventually("Pod", running(2))
        assert [group["metadata"]["name"] for group in cluster.all("PodGroup")] == ["mine"]
        assert {pod["spec"]["schedulerName"] for pod in found} == {"default-scheduler"}

    play(scenario, gates=NATIVE, custom=False)


def test_replicas_of_a_leaderworkerset_are_groups_of_their_revision() -> None:
    async def scenario(cluster: InCluster) -> None:
        body = {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "vllm", "annotations": {"scheduling.phalanx.dev/gang": "true"}},
            "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 3, "workerTemplate": template(1)}},
        }
        await cluster.apply(body)
        found = await cluster.eventually("Pod", running(6))
        revision = found[0]["metadata"]["labels"]["leaderworkerset.sigs.k8s.io/template-revision-hash"]
        names = {f"vllm-0-{revision}", f"vllm-1-{revision}"}
        assert {group["metadata"]["name"] for group in cluster.all("PodGroup")} == names
        for pod in found:
            replica = pod["metadata"]["name"].split("-")[1]
            assert group_of(pod) == f"vllm-{replica}-{revision}"
            assert pod["spec"]["schedulerName"] == "phalanx"
        await cluster.patch(
            "LeaderWorkerSet",
            "vllm",
            {"spec": {"replicas": 1}},
        )
        (left,) = await cluster.eventually("PodGroup", lambda groups: len(groups) == 1)
        assert left["metadata"]["name"] == f"vllm-0-{revision}"

    play(scenario)


def test_a_kind_that_is_not_installed_is_picked_up_when_it_appears(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "ABSENT_SECONDS", 0.1)

    async def scenario(cluster: InCluster) -> None:
        kind = cluster.registry.by_storage_key("jobsets.jobset.x-k8s.io")
        assert kind is not None
        cluster.registry.remove(kind.key)
        await cluster.start_phalanx()
        await cluster.apply(gang_job("train", 2, suspend=True))
        await cluster.eventually("PodGroup", lambda groups: len(groups) == 1)
        cluster.registry.add(kind)
        await cluster.apply(jobset_of("js", {"scheduling.phalanx.dev/gang": "true"}, ("w", 2, 2)))
        groups = await cluster.eventually("PodGroup", lambda groups: len(groups) == 2)
        assert {group["spec"]["schedulingPolicy"]["gang"]["minCount"] for group in groups} == {2, 4}

    play(scenario, phalanx=False, upstream=False, nodes=0, schedulers=())


def test_custom_resources_installed_later_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(informer, "ABSENT_SECONDS", 0.1)

    async def scenario(cluster: InCluster) -> None:
        await cluster.apply(gang_job("early", 2, suspend=True))
        await cluster.announced("APINotAvailable", "install the custom resources")
        await cluster.install_custom_resources()
        await cluster.apply(gang_job("train", 2))
        await cluster.eventually("Pod", running(2))
        assert cluster.all("PodGroup")

    play(scenario, custom=False)


def test_one_replica_writes_and_the_next_takes_over() -> None:
    async def scenario(cluster: InCluster) -> None:
        first = cluster.phalanx
        assert first is not None
        second = await cluster.start_phalanx()
        await cluster.apply(gang_job("one", 2, suspend=True))
        await cluster.eventually("PodGroup", lambda groups: len(groups) == 1)
        lease = cluster.look("Lease", "phalanx-controllers", "kube-system")
        await first.stop()  # releases the lease
        await cluster.until(
            "Lease",
            "phalanx-controllers",
            "kube-system",
            lambda now: now["spec"]["holderIdentity"] not in ("", lease["spec"]["holderIdentity"] if lease else ""),
        )
        await cluster.apply(gang_job("two", 2, suspend=True))
        await cluster.eventually("PodGroup", lambda groups: len(groups) == 2)
        assert second.authority == first.authority  # one certificate for all replicas

    play(scenario, upstream=False, nodes=0, schedulers=())


def test_an_object_upstream_made_a_moment_ago_is_not_changed() -> None:
    """The race: our caches have not heard of it yet, and the name is the same."""

    async def scenario(cluster: InCluster) -> None:
        owner = await cluster.apply(gang_job("train", 3, suspend=True))
        wanted = group_job(owner)
        assert wanted.workload is not None
        theirs = copy.deepcopy(wanted.workload)
        theirs["spec"]["podGroupTemplates"][0]["schedulingPolicy"] = {"basic": {}}
        made = await cluster.apply(theirs)
        fresh = ClusterControllers(GroupApi(cluster.as_("phalanx-controllers")), cluster.clock)
        with pytest.raises(OtherManager):
            await fresh.writer.write(owner, wanted, ())
        assert cluster.all("Workload") == [made] and cluster.all("PodGroup") == []

    play(scenario, gates=NATIVE, custom=False, phalanx=False, upstream=False, nodes=0, schedulers=())


def test_a_cluster_that_lists_the_field_but_drops_it_is_linked_by_label() -> None:
    """The OpenAPI document of 1.37 has schedulingGroup whether or not the gate is on."""

    async def scenario(cluster: InCluster) -> None:
        assert b'"schedulingGroup"' in await cluster.ask("/openapi/v3/api/v1")
        assert cluster.phalanx is not None and cluster.phalanx.controllers is not None
        assert cluster.phalanx.controllers.directory.abilities == Abilities(False, False)

    play(scenario, upstream=False, nodes=0, schedulers=())


def test_a_stateful_set_that_grows_asks_for_all_before_any_new_pod_starts() -> None:
    async def scenario(cluster: InCluster) -> None:
        labels = {"app": "sim"}
        pods = {"metadata": {"labels": labels}, **template(1)}
        pods["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "40"}}
        spec = {"replicas": 2, "podManagementPolicy": "Parallel", "selector": {"matchLabels": labels}}
        meta = {"annotations": {"scheduling.phalanx.dev/gang": "true"}}
        await cluster.create("StatefulSet", "sim", metadata=meta, spec={**spec, "template": pods})
        await cluster.eventually("Pod", running(2))
        await cluster.patch("StatefulSet", "sim", {"spec": {"replicas": 6}})

        def announced(found: list[Json]) -> bool:
            waiting = [
                p for p in found for c in p["status"].get("conditions") or () if c.get("reason") == "Unschedulable"
            ]
            return len(found) == 6 and len(waiting) == 4

        found = await cluster.eventually("Pod", announced)
        assert sum(bool(pod["spec"].get("nodeName")) for pod in found) == 2

    play(scenario)


def test_a_workload_made_by_hand_is_used_and_goes_with_the_job() -> None:
    async def scenario(cluster: InCluster) -> None:
        plan = {"name": "all", "schedulingPolicy": {"gang": {"minCount": 2}}}
        about = {"apiGroup": "batch", "kind": "Job", "name": "train"}
        body = {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "Workload", "metadata": {"name": "mine"}}
        await cluster.apply({**body, "spec": {"controllerRef": about, "podGroupTemplates": [plan]}})
        await cluster.apply(gang_job("train", 3))
        found = await cluster.eventually("Pod", running(3))
        (group,) = cluster.all("PodGroup")
        assert group["spec"]["workloadRef"] == {"workloadName": "mine", "templateName": "all"}
        assert {pod["spec"]["schedulingGroup"]["podGroupName"] for pod in found} == {group["metadata"]["name"]}
        assert [workload["metadata"]["name"] for workload in cluster.all("Workload")] == ["mine"]
        await cluster.delete("Job", "train", propagation="Background")
        await cluster.eventually("Workload", lambda found: not found)

    play(scenario, gates=NATIVE, custom=False)


def test_new_replicas_of_a_leaderworkerset_follow_new_rules_beside_the_others() -> None:
    async def scenario(cluster: InCluster) -> None:
        body = {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "vllm", "annotations": {"scheduling.phalanx.dev/gang": "true"}},
            "spec": {"replicas": 1, "leaderWorkerTemplate": {"size": 2, "workerTemplate": template(1)}},
        }
        await cluster.apply(body)
        before = {pod["metadata"]["uid"] for pod in await cluster.eventually("Pod", running(2))}
        requested = {"scheduling.phalanx.dev/topology": "kubernetes.io/hostname"}
        await cluster.patch("LeaderWorkerSet", "vllm", {"metadata": {"annotations": requested}})
        assert "keep the rules" in await cluster.announced("GroupsUnchanged")
        await cluster.patch("LeaderWorkerSet", "vllm", {"spec": {"replicas": 2}})
        found = await cluster.eventually("Pod", running(4))
        assert before <= {pod["metadata"]["uid"] for pod in found}
        old, new = cluster.all("PodGroup")
        assert "schedulingConstraints" not in old["spec"] and "schedulingConstraints" in new["spec"]

    play(scenario)


@pytest.mark.parametrize("native", [True, False])
def test_deleted_and_made_again_at_once_it_waits_for_its_own_groups(native: bool) -> None:
    """As `kubectl delete -f x && kubectl apply -f x`, while the groups of the first are still going."""

    async def scenario(cluster: InCluster) -> None:
        requested = {"scheduling.phalanx.dev/gang": "true"}
        await cluster.apply(jobset_of("js", requested, ("w", 1, 2)))
        await cluster.eventually("Pod", running(2))
        (old,) = cluster.all("PodGroup")
        name = old["metadata"]["name"]
        finalizers = [*(old["metadata"].get("finalizers") or ()), "example.com/slow"]
        await cluster.patch("PodGroup", name, {"metadata": {"finalizers": finalizers}})
        await cluster.delete("JobSet", "js", propagation="Background")
        await cluster.apply(jobset_of("js", {**requested, "scheduling.phalanx.dev/min-count": "1"}, ("w", 1, 2)))
        second = cluster.look("JobSet", "js") or {}
        await cluster.eventually("Pod", lambda all_: sum(_of(cluster, pod, second) for pod in all_) == 2)
        mine = [pod for pod in cluster.all("Pod") if _of(cluster, pod, second)]
        assert not any(pod["spec"].get("nodeName") for pod in mine)
        await cluster.eventually("PodGroup", lambda all_: "deletionTimestamp" in all_[0]["metadata"])
        await cluster.patch("PodGroup", name, {"metadata": {"finalizers": None}})
        await cluster.eventually("PodGroup", lambda all_: [g for g in all_ if _owned_by(g, second)])
        # Those of the first may still be on their way out.
        await cluster.eventually("Pod", lambda all_: running(2)([pod for pod in all_ if _of(cluster, pod, second)]))
        (group,) = cluster.all("PodGroup")
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 1}}
        assert not any(event["reason"] == "NameConflict" for event in cluster.all("Event"))

    play(scenario, gates=NATIVE if native else OFF, custom=not native, upstream_gates=OFF)


def _of(cluster: InCluster, pod: Json, jobset: Json) -> bool:
    owner = cluster.look("Job", pod["metadata"]["ownerReferences"][0]["name"])
    alive = "deletionTimestamp" not in pod["metadata"]
    mine = owner is not None and owner["metadata"]["uid"] == pod["metadata"]["ownerReferences"][0]["uid"]
    return bool(alive and mine and owner is not None and _owned_by(owner, jobset))


def _owned_by(obj: Json, owner: Json) -> bool:
    return bool(obj["metadata"]["ownerReferences"][0]["uid"] == owner["metadata"]["uid"])


class JustBegun(Client):
    """kube-apiserver in its first seconds: it knows no roles yet, and forbids everything to everybody."""

    def __init__(self, client: Client) -> None:
        self._client, self.asked = client, set[tuple[str, str]]()

    def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        return self._client.events(call)

    async def call(self, call: Call) -> bytes:
        what = (call.verb, call.resource.plural)
        if what not in self.asked:
            self.asked.add(what)
            raise Forbidden(f"{call.resource.plural} is forbidden: cannot {call.verb}")
        return await self._client.call(call)

    async def served(self, resource: Resource) -> bool:
        return await self._client.served(resource)


def test_a_server_that_forbids_everything_in_its_first_seconds_is_asked_again() -> None:
    """Seen on kube-apiserver 1.37 that was killed: the controllers lost their lease, began again, ended of a 403."""

    async def scenario(cluster: InCluster) -> None:
        begun = JustBegun(cluster.as_("phalanx-controllers"))
        await cluster.start_phalanx(begun)
        assert {("list", "podgroups"), ("get", "secrets"), ("create", "secrets")} <= begun.asked
        await cluster.apply(gang_job("train", 2))
        await cluster.eventually("Pod", running(2))
        assert len(cluster.all("PodGroup")) == 1

    play(scenario, phalanx=False)


def test_controllers_wait_for_their_namespace() -> None:
    """Of a cluster that was set up again under them: `kubectl apply -k deploy/` follows."""

    async def scenario(cluster: InCluster) -> None:
        lease = LeaseSettings("phalanx-controllers", "not-yet")
        starting = asyncio.create_task(cluster.start_phalanx(namespace="not-yet", lease=lease))
        done, _ = await asyncio.wait({starting}, timeout=0.5)
        assert not done, starting.exception()
        await cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "not-yet"}})
        await starting
        await cluster.apply(gang_job("train", 2))
        await cluster.eventually("Pod", running(2))

    play(scenario, phalanx=False)
