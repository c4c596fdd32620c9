"""A cluster that knows nothing of groups: custom resources, links by label, the webhook and the second scheduler."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.base.errors import NotFound
from phalanx.base.resources import NODES, PODS
from phalanx.cli import owners
from phalanx.cli.conditions import from_conditions
from phalanx.cli.output import CommandResult
from support.cluster_mode import GANG, InCluster, gang_job, group_of, jobset_of, play, running
from support.manifests import template

Json = dict[str, Any]


def test_the_pods_of_a_job_that_asks_are_a_gang_of_the_second_scheduler() -> None:
    async def scenario(cluster: InCluster) -> None:
        made = await cluster.apply(gang_job("train", 3))
        pods = await cluster.eventually("Pod", running(3))
        (workload,) = cluster.all("Workload")
        (group,) = cluster.all("PodGroup")
        assert group["apiVersion"] == "scheduling.phalanx.dev/v1beta1"
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 3}}
        owners = [(o["apiVersion"], o["kind"], o.get("controller")) for o in group["metadata"]["ownerReferences"]]
        assert owners == [("batch/v1", "Job", True), ("scheduling.phalanx.dev/v1beta1", "Workload", None)]
        assert {group_of(pod) for pod in pods} == {group["metadata"]["name"]}
        assert {pod["spec"]["schedulerName"] for pod in pods} == {"phalanx"}
        assert all("schedulingGroup" not in pod["spec"] for pod in pods)
        assert workload["metadata"]["ownerReferences"][0]["uid"] == made["metadata"]["uid"]
        assert "Created PodGroup" in await cluster.announced("PodGroupCreated")
        await cluster.delete("Job", "train", propagation="Background")
        for kind in ("PodGroup", "Workload", "Pod"):
            await cluster.eventually(kind, lambda found: not found)

    play(scenario)


def test_a_gang_that_does_not_fit_starts_no_pod_and_others_run_as_ever() -> None:
    async def scenario(cluster: InCluster) -> None:
        await cluster.apply(gang_job("big", 1000))
        await cluster.apply(gang_job("plain", 2, annotations={}))
        (group,) = await cluster.eventually(
            "PodGroup",
            lambda groups: groups and (groups[0].get("status") or {}).get("conditions"),
        )
        conditions = {each["type"]: each["status"] for each in group["status"]["conditions"]}
        assert conditions["PodGroupInitiallyScheduled"] == "False"
        pods = await cluster.eventually("Pod", running(2))
        assert {p["metadata"]["labels"]["job-name"] for p in pods if p["spec"].get("nodeName")} == {"plain"}
        plain = [p for p in pods if p["metadata"]["labels"]["job-name"] == "plain"]
        assert {p["spec"]["schedulerName"] for p in plain} == {"default-scheduler"}
        assert not any(group_of(p) for p in plain)

    play(scenario, nodes=2)


def test_every_job_of_a_jobset_joins_its_own_group_of_the_tree() -> None:
    async def scenario(cluster: InCluster) -> None:
        annotations = {"scheduling.phalanx.dev/group-tree": "Job"}
        await cluster.apply(jobset_of("js", annotations, ("driver", 1, 1), ("worker", 2, 2)))
        pods = await cluster.eventually("Pod", running(5))
        by_job: dict[str, set[str]] = {}
        for pod in pods:
            by_job.setdefault(pod["metadata"]["labels"]["job-name"], set()).add(group_of(pod))
        names = ("js-driver-0", "js-worker-0", "js-worker-1")
        assert by_job == {name: {name} for name in names}
        assert [c["metadata"]["name"] for c in cluster.all("CompositePodGroup")] == ["js", "js-driver", "js-worker"]

    play(scenario)


def test_the_minimum_follows_the_size_of_the_job() -> None:
    async def scenario(cluster: InCluster) -> None:
        await cluster.apply(gang_job("train", 2, completions=None, completionMode="NonIndexed", suspend=True))
        (group,) = await cluster.eventually("PodGroup", bool)
        assert group["spec"]["schedulingPolicy"]["gang"]["minCount"] == 2
        await cluster.patch("Job", "train", {"spec": {"parallelism": 4}})
        await cluster.eventually("PodGroup", lambda g: g[0]["spec"]["schedulingPolicy"]["gang"]["minCount"] == 4)
        (workload,) = await cluster.eventually(
            "Workload",
            lambda w: w[0]["spec"]["podGroupTemplates"][0]["schedulingPolicy"]["gang"]["minCount"] == 4,
        )
        assert workload["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "phalanx-controllers"

    play(scenario)


async def end(cluster: InCluster, pods: list[Json]) -> None:
    for pod in pods:
        await cluster.patch("Pod", pod["metadata"]["name"], {"status": {"phase": "Succeeded"}}, subresource="status")


def test_the_last_wave_of_a_job_may_be_small() -> None:
    """Parallelism 3, completions 5, all three end together: two are left, and a gang of three would wait for ever."""

    async def scenario(cluster: InCluster) -> None:
        await cluster.apply(gang_job("train", 3, completions=5))
        first = await cluster.eventually("Pod", running(3))
        await end(cluster, first)
        await cluster.eventually("Pod", running(2))
        (group,) = cluster.all("PodGroup")
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
        (workload,) = cluster.all("Workload")
        (template,) = workload["spec"]["podGroupTemplates"]
        assert template["schedulingPolicy"] == {"gang": {"minCount": 3}}

    play(scenario)


def test_a_pod_that_is_lost_after_others_of_its_gang_succeeded_is_replaced() -> None:
    async def scenario(cluster: InCluster) -> None:
        await cluster.apply(jobset_of("js", GANG, ("a", 1, 2), ("b", 1, 2)))
        first = await cluster.eventually("Pod", running(4))
        lost = first.pop()
        await end(cluster, first)
        await cluster.eventually("Pod", lambda all_: running(1)(all_))
        await cluster.delete("Pod", lost["metadata"]["name"])
        updates = await cluster.eventually(
            "Pod", lambda all_: running(1)([p for p in all_ if p not in first and _new(p, lost)])
        )
        assert all(group_of(pod) for pod in updates)
        (group,) = cluster.all("PodGroup")
        assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 1}}

    play(scenario)


def _new(pod: Json, than: Json) -> bool:
    return bool(pod["metadata"]["uid"] != than["metadata"]["uid"])


def test_names_that_do_not_fit_into_a_label_are_shortened() -> None:
    async def scenario(cluster: InCluster) -> None:
        await cluster.apply(gang_job("a-job-with-a-rather-long-name-of-fifty-characters", 2))
        pods = await cluster.eventually("Pod", running(2))
        (group,) = cluster.all("PodGroup")
        assert len(group["metadata"]["name"]) <= 63
        assert {group_of(pod) for pod in pods} == {group["metadata"]["name"]}

    play(scenario)


def test_pods_that_no_webhook_saw_are_labelled() -> None:
    async def scenario(cluster: InCluster) -> None:
        cluster.webhook_on = False
        await cluster.apply(gang_job("train", 3, pod={"schedulerName": "nobody"}))
        pods = await cluster.eventually("Pod", lambda pods: len(pods) == 3 and all(group_of(pod) for pod in pods))
        (group,) = cluster.all("PodGroup")
        assert {group_of(pod) for pod in pods} == {group["metadata"]["name"]}

    play(scenario)


def test_a_job_that_began_without_groups_is_left_alone() -> None:
    async def scenario(cluster: InCluster) -> None:
        await cluster.stop_phalanx()
        cluster.webhook_on = False
        await cluster.apply(gang_job("old", 2))
        await cluster.eventually("Pod", running(2))
        await cluster.start_phalanx()
        assert "start it again" in await cluster.announced("NotGrouped")
        assert cluster.all("PodGroup") == [] and cluster.all("Workload") == []
        assert not any(group_of(pod) for pod in cluster.all("Pod"))

    play(scenario)


def test_only_a_workload_that_would_have_had_groups_says_that_it_has_none() -> None:
    """The controller of LeaderWorkerSets copies the annotations of a set onto the StatefulSet it makes of it."""

    async def scenario(cluster: InCluster) -> None:
        await cluster.stop_phalanx()
        cluster.webhook_on = False
        maker = await cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "maker"}})
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "maker", "uid": maker["metadata"]["uid"]}
        labels = {"app": "part"}
        meta = {"name": "part", "annotations": GANG, "ownerReferences": [{**owner, "controller": True}]}
        pods = {"metadata": {"labels": labels}, **template(1)}
        spec = {"replicas": 1, "serviceName": "part", "selector": {"matchLabels": labels}, "template": pods}
        spec |= {"podManagementPolicy": "Parallel"}
        await cluster.apply({"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": meta, "spec": spec})
        await cluster.apply(gang_job("old", 1))
        await cluster.eventually("Pod", running(2))
        await cluster.start_phalanx()
        await cluster.announced("NotGrouped")
        await cluster.apply(gang_job("next", 1))  # its group tells that the new process looked at everything
        await cluster.eventually("PodGroup", lambda groups: len(groups) == 1)
        announced = [event for event in cluster.all("Event") if event["reason"] == "NotGrouped"]
        assert {(event.get("regarding") or event["involvedObject"])["kind"] for event in announced} == {"Job"}

    play(scenario)


def test_groups_survive_a_restart_of_the_controllers() -> None:
    async def scenario(cluster: InCluster) -> None:
        await cluster.apply(gang_job("train", 2))
        await cluster.eventually("Pod", running(2))
        (before,) = cluster.all("PodGroup")
        await cluster.stop_phalanx()
        await cluster.start_phalanx()
        await cluster.apply(gang_job("next", 1))  # its group tells that the new process looked at everything
        groups = await cluster.eventually("PodGroup", lambda groups: len(groups) == 2)
        assert before["metadata"]["uid"] in {group["metadata"]["uid"] for group in groups}

    play(scenario)


def test_a_workload_that_cannot_be_grouped_says_why() -> None:
    async def scenario(cluster: InCluster) -> None:
        await cluster.apply(gang_job("bad", 2, annotations={**GANG, "scheduling.phalanx.dev/min-count": "9"}))
        assert "9" in await cluster.announced("InvalidSchedulingConfiguration")
        await cluster.eventually("Pod", running(2))
        assert cluster.all("PodGroup") == []

    play(scenario)


def test_an_object_of_another_owner_is_not_taken_over() -> None:
    async def scenario(cluster: InCluster) -> None:
        annotations = {"scheduling.phalanx.dev/group-tree": "Job"}
        theirs = {
            "apiVersion": "scheduling.phalanx.dev/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": "js-w-0"},
            "spec": {"schedulingPolicy": {"basic": {}}},
        }
        await cluster.apply(theirs)
        await cluster.apply(jobset_of("js", annotations, ("w", 1, 2)))
        assert "was made by hand" in await cluster.announced("NameConflict")
        (group,) = cluster.all("PodGroup")
        assert group["spec"] == theirs["spec"]

    play(scenario)


def test_groups_have_the_priority_of_their_pods() -> None:
    async def scenario(cluster: InCluster) -> None:
        await cluster.create("PriorityClass", "high", value=1000)
        await cluster.apply(gang_job("train", 2, pod={"priorityClassName": "high"}))
        await cluster.eventually("Pod", running(2))
        (group,) = cluster.all("PodGroup")
        assert group["spec"]["priority"] == 1000

    play(scenario)


def test_the_groups_of_a_workload_are_found_where_they_are_custom_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    """`phalanx why job/train`: one question for each of its groups."""

    async def scenario(cluster: InCluster) -> None:
        await cluster.apply(gang_job("train", 3, suspend=True))
        (group,) = await cluster.eventually("PodGroup", bool)

        class Asked:
            client = cluster.client

            def __init__(self, *_: Any) -> None: ...

            async def __aenter__(self) -> Asked:
                return self

            async def __aexit__(self, *_: object) -> None: ...

        asked: list[tuple[str, str]] = []

        async def ask(kind: str, name: str) -> CommandResult:
            asked.append((kind, name))
            return CommandResult(0)

        monkeypatch.setattr(owners, "SchedulerClient", Asked)
        monkeypatch.setattr(owners.Where, "connection", lambda _: SimpleNamespace(namespace="default"))
        suspended, of_group = await owners.each_root(ask, "job/train", owners.Where())
        assert suspended.code == 1 and of_group.code == 0
        assert asked == [("PodGroup", group["metadata"]["name"])]

    play(scenario)


def test_conditions_are_found_where_groups_are_custom_resources() -> None:
    """`phalanx why` without a scheduler that answers: what the API server knows."""

    async def scenario(cluster: InCluster) -> None:
        await cluster.apply(gang_job("train", 3))
        await cluster.eventually("Pod", running(3))
        (group,) = await cluster.eventually("PodGroup", _scheduled)
        name = group["metadata"]["name"]
        answer = await from_conditions(cluster.client, "PodGroup", "default", name, "nobody answers")
        assert answer.code == 0 and f"podgroup/{name} in default: scheduled (Running)" in answer.text
        for node in cluster.all("Node", ""):
            await cluster.client.patch(NODES, node["metadata"]["name"], {"spec": {"unschedulable": True}})
        pod = cluster.all("Pod")[0]["metadata"]["name"]
        await cluster.client.delete(PODS, pod, "default")
        await cluster.eventually("PodGroup", _degraded)
        answer = await from_conditions(cluster.client, "PodGroup", "default", name, "nobody answers")
        assert answer.code == 1 and "pending (Degraded)" in answer.text and f"{pod} (deleted)" in answer.text
        with pytest.raises(NotFound, match='"nobody" not found in default'):
            await from_conditions(cluster.client, "PodGroup", "default", "nobody", "nobody answers")

    play(scenario)


def _degraded(groups: list[Json]) -> bool:
    conditions = (groups[0].get("status") or {}).get("conditions") or ()
    return any(condition["reason"] == "Degraded" for condition in conditions)


def _scheduled(groups: list[Json]) -> bool:
    conditions = (groups[0].get("status") or {}).get("conditions") or ()
    return any(condition["status"] == "True" for condition in conditions)
