"""The webhook as kube-apiserver sees it: quick, never in the way, and clear about what it did not understand."""

from __future__ import annotations

import asyncio
import base64
import json
import statistics
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from phalanx.controllers.cluster_mode.linking import Abilities
from support.cluster_mode import GANG, LABEL, InCluster, beside, gang_job, jobset_of, review

Json = dict[str, Any]


def play(scenario: Callable[[InCluster], Coroutine[Any, Any, None]], **options: Any) -> None:
    async def run() -> None:
        async with beside(upstream=False, nodes=0, schedulers=(), **options) as cluster:
            await scenario(cluster)

    asyncio.run(run())


def pod_of(owner: Json, name: str = "p", labels: Json | None = None, **spec: Any) -> Json:
    meta = owner["metadata"]
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}
    metadata: Json = {"name": name, "ownerReferences": [{**reference, "controller": True}]}
    if labels is not None:
        metadata["labels"] = labels
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [], **spec}}


async def answer(cluster: InCluster, body: Any) -> tuple[int, Json]:
    code, text = await cluster.post(body if isinstance(body, bytes) else json.dumps(body).encode())
    return code, json.loads(text)["response"] if code == 200 else {}


def test_a_pod_without_labels_gets_its_label_and_scheduler() -> None:
    async def scenario(cluster: InCluster) -> None:
        owner = await cluster.apply(gang_job("train", 2))
        code, response = await answer(cluster, review(pod_of(owner)))
        patch = json.loads(base64.b64decode(response["patch"]))
        (group,) = await cluster.eventually("PodGroup", bool)
        assert code == 200 and response["uid"] == review({})["request"]["uid"]
        assert patch == [
            {"op": "add", "path": "/metadata/labels", "value": {LABEL: group["metadata"]["name"]}},
            {"op": "add", "path": "/spec/schedulerName", "value": "phalanx"},
        ]

    play(scenario)


def test_other_labels_and_a_scheduler_chosen_by_hand_are_kept() -> None:
    async def scenario(cluster: InCluster) -> None:
        owner = await cluster.apply(gang_job("train", 2))
        linked = await cluster.admit(pod_of(owner, labels={"a/b": "c"}, schedulerName="other"))
        assert linked["metadata"]["labels"].keys() == {"a/b", LABEL}
        assert linked["spec"]["schedulerName"] == "other"
        away = {**GANG, "scheduling.phalanx.dev/scheduler-name": "default-scheduler"}
        stays = await cluster.apply(gang_job("stays", 2, annotations=away))
        linked = await cluster.admit(pod_of(stays, schedulerName="default-scheduler"))
        assert linked["spec"]["schedulerName"] == "default-scheduler" and LABEL in linked["metadata"]["labels"]

    play(scenario)


@pytest.mark.parametrize(
    "change",
    [
        {"operation": "UPDATE"},
        {"subResource": "binding"},
        {"resource": {"group": "apps", "version": "v1", "resource": "deployments"}},
    ],
)
def test_what_is_not_the_creation_of_a_pod_passes(change: Json) -> None:
    async def scenario(cluster: InCluster) -> None:
        owner = await cluster.apply(gang_job("train", 2))
        assert await answer(cluster, review(pod_of(owner), **change)) == (
            200,
            {"uid": review({})["request"]["uid"], "allowed": True},
        )

    play(scenario)


def test_a_pod_that_is_spoken_for_passes_unchanged() -> None:
    async def scenario(cluster: InCluster) -> None:
        owner = await cluster.apply(gang_job("train", 2))
        alone = {"apiVersion": "v1", "kind": "Pod", "metadata": {"generateName": "x-"}, "spec": {}}
        for pod in (
            alone,
            pod_of(owner, labels={LABEL: "mine"}),
            pod_of(owner, schedulingGroup={"podGroupName": "mine"}),
            pod_of(owner, nodeName="n1"),
        ):
            assert await cluster.admit(pod) == pod

    play(scenario)


def test_nonsense_is_distinguished_from_pods() -> None:
    async def scenario(cluster: InCluster) -> None:
        for body in (b"", b"{", b"[]", b"\xff\xfe", b'{"request": 5}', b'{"request": {}}'):
            assert (await answer(cluster, body))[0] == 400, body
        old = {**review({}), "apiVersion": "admission.k8s.io/v1beta1"}
        assert (await answer(cluster, old))[0] == 400
        for pod in (None, [], {"metadata": {"labels": 5}}, {"metadata": {"ownerReferences": [7]}}):
            code, response = await answer(cluster, review(pod))
            assert code == 200 and response["allowed"] is True
            assert "could not read this object" in response["warnings"][0]
        code, response = await answer(cluster, review({"metadata": {}, "spec": {}, "new": {"field": [1]}}))
        assert (code, response.get("warnings")) == (200, None)

    play(scenario)


def test_a_fault_inside_lets_the_pod_pass() -> None:
    async def scenario(cluster: InCluster) -> None:
        owner = await cluster.apply(gang_job("train", 2))
        assert cluster.phalanx is not None and cluster.phalanx.controllers is not None
        cluster.phalanx.controllers.directory.abilities = None  # type: ignore[assignment]
        code, response = await answer(cluster, review(pod_of(owner)))
        assert code == 200 and response["allowed"] is True and "patch" not in response
        assert "see the log" in response["warnings"][0]

    play(scenario)


def test_a_pod_that_comes_before_the_news_of_its_job_waits_for_it() -> None:
    async def scenario(cluster: InCluster) -> None:
        late = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "late", "uid": "u"}}
        asking = asyncio.create_task(cluster.admit(pod_of(late)))
        assert cluster.phalanx is not None and cluster.phalanx.controllers is not None
        while not cluster.phalanx.controllers.directory._waiting:
            await asyncio.sleep(0)
        await cluster.apply(gang_job("late", 2))
        assert LABEL in (await asking)["metadata"]["labels"]

    play(scenario)


def test_a_pod_whose_owner_never_appears_is_not_held_up_for_long() -> None:
    async def scenario(cluster: InCluster) -> None:
        ghost = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "ghost", "uid": "u"}}
        began = time.monotonic()
        pod = pod_of(ghost)
        assert await cluster.admit(pod) == pod
        assert 0.9 < time.monotonic() - began < 2.5
        unknown = {"apiVersion": "example.com/v1", "kind": "Robot", "metadata": {"name": "r", "uid": "u"}}
        began = time.monotonic()
        await cluster.admit(pod_of(unknown))
        assert time.monotonic() - began < 0.5

    play(scenario)


def test_answers_take_less_than_five_milliseconds_in_the_middle_of_many_workloads() -> None:
    async def scenario(cluster: InCluster) -> None:
        owner: Json = {}
        for number in range(300):
            owner = await cluster.apply(jobset_of(f"js-{number}", GANG, ("w", 4, 8)))
        await cluster.eventually("PodGroup", lambda groups: len(groups) == 300)
        labels = {"jobset.sigs.k8s.io/jobset-name": "js-299", "jobset.sigs.k8s.io/replicatedjob-name": "w"}
        child = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "js-299-w-3", "uid": "u"}}
        await cluster.apply(gang_job("js-299-w-3", 8, annotations={}, suspend=True))
        body = json.dumps(review(pod_of(child, labels=labels))).encode()
        times = []
        for _ in range(200):
            began = time.perf_counter()
            code, response = await answer(cluster, body)
            times.append(time.perf_counter() - began)
            assert code == 200 and "patch" in response
        assert statistics.median(times) < 0.005, f"median {statistics.median(times) * 1000:.2f} ms"
        assert owner

    play(scenario)


def test_replicas_and_subgroups_are_read_from_names_where_labels_are_missing() -> None:
    """Our webhook may run before the one of LeaderWorkerSet, which adds the labels."""

    async def scenario(cluster: InCluster) -> None:
        prefix = "leaderworkerset.sigs.k8s.io/"
        worker = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
        await cluster.apply(
            {
                "apiVersion": "leaderworkerset.x-k8s.io/v1",
                "kind": "LeaderWorkerSet",
                "metadata": {"name": "my-lws", "annotations": GANG},
                "spec": {"replicas": 3, "leaderWorkerTemplate": {"size": 2, "workerTemplate": worker}},
            }
        )
        labels = {f"{prefix}name": "my-lws", f"{prefix}template-revision-hash": "abc"}
        template = {"metadata": {"labels": labels}, **worker}
        for name in ("my-lws", "my-lws-2"):  # of the leaders, and of the workers of replica 2
            spec = {"selector": {"matchLabels": labels}, "serviceName": "s", "template": template}
            await cluster.create("StatefulSet", name, spec=spec)
        leaders, workers = (cluster.look("StatefulSet", name) for name in ("my-lws", "my-lws-2"))
        assert leaders is not None and workers is not None
        leader = await cluster.admit(pod_of(leaders, "my-lws-2", {**labels, f"{prefix}worker-index": "0"}))
        assert leader["metadata"]["labels"][LABEL] == "my-lws-2-abc"
        member = await cluster.admit(pod_of(workers, "my-lws-2-1", {**labels, f"{prefix}group-index": "2"}))
        assert member["metadata"]["labels"][LABEL] == "my-lws-2-abc"

    play(scenario)


def test_the_field_is_used_where_the_server_keeps_it() -> None:
    async def scenario(cluster: InCluster) -> None:
        owner = await cluster.apply(gang_job("train", 2))
        assert cluster.phalanx is not None and cluster.phalanx.controllers is not None
        cluster.phalanx.controllers.directory.abilities = Abilities(scheduling_group=True)
        linked = await cluster.admit(pod_of(owner))
        assert "labels" not in linked["metadata"] and linked["spec"]["schedulingGroup"]["podGroupName"]

    play(scenario)
