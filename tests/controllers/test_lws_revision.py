"""Revisions of LeaderWorkerSets have the data and the hash of the LeaderWorkerSet controller.

The expected hashes are what LeaderWorkerSet v0.10.0 computes for these objects.
"""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.controllers.workloads.leaderworkerset import controller
from phalanx.controllers.workloads.leaderworkerset.revision import at_revision, revision_data, revision_hash
from support.controller_world import World, play
from support.lws_objects import P, done, lws
from support.states import running

Json = dict[str, Any]
NGINX: Json = {"name": "n", "image": "nginx:1"}
RICH: Json = {
    "name": "c",
    "image": "a<b&c>",
    "ports": [{"containerPort": 80}],
    "env": [{"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}],
    "resources": {"limits": {"cpu": "1"}},
}
PLACEMENT: Json = {
    "requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "z", "labelSelector": {"matchLabels": {"q": "r"}}}
    ],
    "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 3, "podAffinityTerm": {"topologyKey": "z"}}],
}
DISK: Json = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
LEADER: Json = {
    "metadata": {"labels": {"a": "é\u2028"}},
    "spec": {
        "initContainers": [{"name": "i", "image": "x"}],
        "containers": [
            {
                "name": "m",
                "image": "y",
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "readinessProbe": {"httpGet": {"port": 80}},
                "securityContext": {"privileged": True},
            }
        ],
        "volumes": [
            {"name": "v", "emptyDir": {}},
            {"name": "e", "ephemeral": {"volumeClaimTemplate": {"spec": DISK}}},
        ],
        "nodeSelector": {"a": "b"},
        "tolerations": [{"key": "k", "operator": "Exists"}],
        "affinity": {"podAntiAffinity": PLACEMENT},
        "securityContext": {},
        "terminationGracePeriodSeconds": 5,
    },
}


def a_set(container: Json, subdomains: str = "Shared", **more: Any) -> Json:
    template = {
        "size": 2,
        "restartPolicy": "RecreateGroupOnPodRestart",
        "workerTemplate": {"spec": {"containers": [container]}},
        **more,
    }
    network = {"networkConfig": {"subdomainPolicy": subdomains}} if subdomains else {}
    return {"metadata": {"name": "l"}, "spec": {"replicas": 1, "leaderWorkerTemplate": template, **network}}


MANY_FIELDS = a_set(
    RICH,
    "",
    leaderTemplate=LEADER,
    volumeClaimTemplates=[{"metadata": {"name": "w"}, "spec": DISK}],
    subGroupPolicy={"subGroupSize": 2, "subGroupPolicyType": "LeaderWorker"},
)


@pytest.mark.parametrize(
    ("obj", "digest"),
    [(a_set(RICH), "759fb99696"), (MANY_FIELDS, "7c5f4fddfb"), (a_set(NGINX, "UniquePerReplica"), "655cf6954b")],
)
def test_the_hash_is_that_of_the_leaderworkerset_controller(obj: Json, digest: str) -> None:
    data = revision_data(obj)
    assert revision_hash(data) == digest
    assert revision_hash(data, 1) != digest
    restored = at_revision(obj, {"data": data})
    assert revision_data(restored) == data
    assert "$patch" not in str(restored)


def test_a_revision_stored_by_an_earlier_version_is_still_that_of_its_template() -> None:
    """So an upgrade of Phalanx rolls no group out."""

    async def scenario(cluster: World) -> None:
        await cluster.kill_controllers()
        made = await cluster.apply(lws("l", replicas=1, size=2))
        owner = {
            "apiVersion": made["apiVersion"],
            "kind": made["kind"],
            "name": "l",
            "uid": made["metadata"]["uid"],
            "controller": True,
        }
        name, label = f"{P}name", f"{P}template-revision-hash"
        earlier = {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {"name": "l-earlier-1", "labels": {name: "l", label: "earlier"}, "ownerReferences": [owner]},
            "data": {"spec": {"leaderWorkerTemplate": made["spec"]["leaderWorkerTemplate"]}},
            "revision": 1,
        }
        await cluster.apply(earlier)
        await cluster.start_controllers()
        pods = await cluster.eventually("Pod", lambda found: len(found) == 2)
        assert {pod["metadata"]["labels"][label] for pod in pods} == {"earlier"}
        (kept,) = [
            found
            for found in cluster.all("ControllerRevision")
            if found["metadata"]["ownerReferences"][0]["kind"] == "LeaderWorkerSet"
        ]
        assert kept["metadata"]["name"] == "l-earlier-1"

    play(scenario)


def test_a_set_made_again_takes_over_what_an_orphaning_deletion_left() -> None:
    async def scenario(cluster: World) -> None:
        await cluster.apply(lws("l", replicas=1, size=2))
        before = await running(cluster, 2)
        await cluster.delete("LeaderWorkerSet", "l", propagation="Orphan")
        await cluster.gone("LeaderWorkerSet", "l")
        await cluster.apply(lws("l", replicas=1, size=2))
        await done(cluster, "l")
        uids = {pod["metadata"]["uid"] for pod in before}
        assert {pod["metadata"]["uid"] for pod in cluster.all("Pod")} == uids, "no pod restarts"
        (owner,) = cluster.look("StatefulSet", "l")["metadata"]["ownerReferences"]
        assert owner["uid"] == cluster.look("LeaderWorkerSet", "l")["metadata"]["uid"]
        revisions = [o for o in cluster.all("ControllerRevision") if "leaderWorkerTemplate" in o["data"]["spec"]]
        assert len(revisions) == 1 and revisions[0]["metadata"]["ownerReferences"]

    play(scenario)


def test_pods_of_a_controller_that_stored_no_revision_run_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's older versions stored none: what runs under an unknown revision is treated as current."""

    async def scenario(cluster: World) -> None:
        await cluster.kill_controllers()
        with monkeypatch.context() as older:
            older.setattr(controller, "revision_hash", lambda data, collisions: "older")
            await cluster.start_controllers()
            await cluster.apply(lws("l", replicas=1, size=2))
            before = await running(cluster, 2)
            await done(cluster, "l")
            await cluster.kill_controllers()
        (stored,) = [o for o in cluster.all("ControllerRevision") if "leaderWorkerTemplate" in o["data"]["spec"]]
        await cluster.delete("ControllerRevision", stored["metadata"]["name"])
        await cluster.start_controllers()
        name, label = stored["metadata"]["name"], f"{P}template-revision-hash"

        def known(found: list[Json]) -> list[Json]:
            mine = [o for o in found if "leaderWorkerTemplate" in o["data"]["spec"]]
            return [o for o in mine if o["metadata"]["uid"] != stored["metadata"]["uid"]]

        again = await cluster.eventually("ControllerRevision", known)
        assert [o["metadata"]["labels"][label] for o in known(again)] == ["older"], name
        await cluster.patch("LeaderWorkerSet", "l", {"spec": {"replicas": 2}})
        await done(cluster, "l")
        uids = {pod["metadata"]["uid"] for pod in before}
        assert uids <= {pod["metadata"]["uid"] for pod in await running(cluster, 4)}, "no pod restarts"

    play(scenario)
