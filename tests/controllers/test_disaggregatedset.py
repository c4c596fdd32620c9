"""DisaggregatedSets: roles of slices as LeaderWorkerSets, rolled together; what is refused; scalers and Services."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from phalanx.controllers.workloads.disaggregatedset.planner import RoleLimits, Rollout, next_step
from phalanx.model import builtin
from phalanx.model.gates import Gates
from support.controller_world import Json, World, condition, world
from support.manifests import template

KIND = next(kind for kind in builtin.registry(Gates()).all() if kind.kind == "DisaggregatedSet")
P = "disaggregatedset.x-k8s.io/"


def role(name: str, replicas: int = 1, image: str = "v1", **rest: Any) -> Json:
    inner = {"size": 1, "workerTemplate": template("100m", app=name, image=image)}
    spec = {"replicas": replicas, "leaderWorkerTemplate": inner, **rest.pop("spec", {})}
    return {"name": name, "spec": spec, **rest}


def made(*roles: Json, **spec: Any) -> Json:
    return {
        "apiVersion": "disaggregatedset.x-k8s.io/v1",
        "kind": "DisaggregatedSet",
        "metadata": {"name": "ds"},
        "spec": {"roles": list(roles or (role("prefill"), role("decode"))), **spec},
    }


def available(obj: Json) -> bool:
    generation = (obj.get("status") or {}).get("observedGeneration")
    return generation == obj["metadata"]["generation"] and condition(obj, "Available").get("status") == "True"


async def done(cluster: World) -> Json:
    return await cluster.until("DisaggregatedSet", "ds", when=available)


def by_role(cluster: World, **labels: str) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for lws in cluster.all("LeaderWorkerSet", **labels):
        found.setdefault(lws["metadata"]["labels"][f"{P}role"], []).append(lws)
    return found


def test_every_role_of_every_slice_is_a_leader_worker_set_with_a_service() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(made(role("prefill", 2), role("decode", 1), slices=2))
            found = await done(cluster)
            assert found["status"]["roleStatuses"] == [
                {"name": "prefill", "replicas": 4, "readyReplicas": 4, "updatedReplicas": 4},
                {"name": "decode", "replicas": 2, "readyReplicas": 2, "updatedReplicas": 2},
            ]
            sets = cluster.all("LeaderWorkerSet")
            assert len(sets) == 4
            labels = sets[0]["metadata"]["labels"]
            revision = labels[f"{P}revision"]
            assert sets[0]["metadata"]["name"] == f"ds-0-{revision}-decode" and labels["app"] == "ds-0-decode"
            assert sets[0]["metadata"]["ownerReferences"][0]["kind"] == "DisaggregatedSet"
            pods = cluster.all("Pod", **{f"{P}role": "prefill", f"{P}slice": "1"})
            assert len(pods) == 2 and {pod["metadata"]["labels"][f"{P}revision"] for pod in pods} == {revision}
            await cluster.eventually(
                "Service", lambda all_: sum(s["metadata"]["name"].endswith("-prv") for s in all_) == 4
            )
            await cluster.patch("DisaggregatedSet", "ds", {"spec": {"slices": 1}})
            await cluster.eventually("LeaderWorkerSet", lambda all_: len(all_) == 2)
            await done(cluster)
            await cluster.delete("DisaggregatedSet", "ds", propagation="Foreground")
            for kind in ("LeaderWorkerSet", "Pod", "Service"):
                await cluster.eventually(kind, lambda all_: not all_)

    asyncio.run(scenario())


def test_a_new_template_rolls_all_roles_and_never_serves_less() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(made(role("prefill", 2), role("decode", 2)))
            await done(cluster)
            before = {lws["metadata"]["name"] for lws in cluster.all("LeaderWorkerSet")}
            body = {"spec": {"roles": [role("prefill", 2, "v2"), role("decode", 2)]}}
            await cluster.patch("DisaggregatedSet", "ds", body)
            await cluster.until(
                "DisaggregatedSet",
                "ds",
                when=lambda o: available(o) and len(cluster.all("LeaderWorkerSet")) == 2,
            )
            after = cluster.all("LeaderWorkerSet")
            assert not before & {lws["metadata"]["name"] for lws in after}, "decode is rolled with prefill"
            await cluster.eventually("Pod", lambda pods: len(pods) == 4)
            reasons = {event["reason"] for event in cluster.all("Event")}
            assert {"RollingUpdateStarted", "ScalingUp", "ScalingDown", "LWSDeleted"} <= reasons

    asyncio.run(scenario())


def test_a_scaler_sets_the_replicas_of_an_external_role() -> None:
    async def scenario() -> None:
        async with world() as cluster:
            await cluster.apply(made(role("prefill", 1), role("decode", 1, scaling={"mode": "External"})))
            await done(cluster)
            scaler = await cluster.until("DisaggregatedSetRoleScaler", "ds-decode", when=lambda o: o.get("status"))
            assert scaler["spec"]["replicas"] == 1 and f"{P}role=decode" in scaler["status"]["selector"]
            resource = cluster.resource("DisaggregatedSetRoleScaler")
            scale = {"spec": {"replicas": 3}}
            await cluster.client.patch(resource, "ds-decode", scale, "default", subresource="scale")
            await cluster.until(
                "DisaggregatedSet",
                "ds",
                when=lambda o: available(o) and o["status"]["roleStatuses"][1]["replicas"] == 3,
            )
            assert by_role(cluster)["decode"][0]["spec"]["replicas"] == 3
            await cluster.patch("DisaggregatedSet", "ds", {"spec": made()["spec"]})
            await cluster.patch("DisaggregatedSet", "ds", {"spec": {"roles": [role("prefill"), role("decode")]}})
            await cluster.gone("DisaggregatedSetRoleScaler", "ds-decode")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("obj", "words"),
    [
        (made(role("a")), "at least 2 items"),
        (made(*[role(f"r{i}") for i in range(11)]), "must have at most 10 items"),
        (made(role("a"), role("a")), "Duplicate value"),
        (made(role("A"), role("b")), "DNS label"),
        (made(role("a", 0), role("b", 1)), "must be zero for all roles"),
        (made(slices=0), "between 1 and 100"),
        (made(slices=101), "between 1 and 100"),
        (made(role("a", scaling={"mode": "External"}), role("b"), slices=2), "spec.slices: Forbidden"),
        (made(role("a", scaling={"mode": "Other"}), role("b")), "Unsupported value"),
        (made(role("a" * 60), role("b")), "may have 63"),
        (made(placementPolicy={"type": "ExclusiveSlice"}), "placementPolicy.topology: Required value"),
        (made(placementPolicy={"type": "Anywhere"}), "Unsupported value"),
        (
            made(
                role("a", spec={"rolloutStrategy": {"rollingUpdateConfiguration": {"partition": 1}}}),
                role("b"),
            ),
            "partition: Forbidden",
        ),
        (
            made(
                role("a", 4, spec={"rolloutStrategy": {"rollingUpdateConfiguration": {"maxUnavailable": "10%"}}}),
                role("b"),
            ),
            "must not be 0 when `maxSurge` is 0",
        ),
        (
            made(
                role("a", metadata={"annotations": {"leaderworkerset.sigs.k8s.io/exclusive-topology": "rack"}}),
                role("b"),
                placementPolicy={"type": "ExclusiveSlice", "topology": "rack"},
            ),
            "may not be combined with a placementPolicy",
        ),
    ],
)
def test_what_is_refused(obj: Json, words: str) -> None:
    assert KIND.default is not None and KIND.validate_create is not None
    KIND.default(obj)
    assert words in "; ".join(map(str, KIND.validate_create(obj)))


def test_slices_have_domains_of_their_own() -> None:
    async def scenario() -> None:
        async with world(nodes=4, topology="racks=2") as cluster:
            policy = {"type": "ExclusiveSlice", "topology": "topology.phalanx.dev/rack"}
            await cluster.apply(made(slices=2, placementPolicy=policy))
            await done(cluster)
            racks = {
                node["metadata"]["name"]: node["metadata"]["labels"]["topology.phalanx.dev/rack"]
                for node in cluster.all("Node")
            }
            used = {
                place: {racks[pod["spec"]["nodeName"]] for pod in cluster.all("Pod", **{f"{P}slice": place})}
                for place in ("0", "1")
            }
            assert len(used["0"]) == len(used["1"]) == 1 and used["0"] != used["1"]

    asyncio.run(scenario())


@pytest.mark.parametrize("seed", range(200))
def test_every_rollout_ends_and_keeps_within_its_limits(seed: int) -> None:
    rng = random.Random(seed)
    roles = rng.randint(2, 4)
    initial = [rng.randint(1, 8) for _ in range(roles)]
    target = [rng.randint(1, 8) for _ in range(roles)]
    limits = [RoleLimits(rng.randint(1, 3), rng.randint(0, 2)) for _ in range(roles)]
    old, new = list(initial), [0] * roles
    for _ in range(200):
        step = next_step(Rollout(initial, old, new, target, limits))
        if step is None:
            break
        old, new = step
        for index in range(roles):
            if initial[index] >= target[index]:
                assert old[index] + new[index] >= target[index] - limits[index].unavailable
        assert any(old) is all(count or not initial[index] for index, count in enumerate(old)), "no role is left alone"
    assert (old, new) == ([0] * roles, target)


def test_of_two_unfinished_updates_the_later_goes_first() -> None:
    async def scenario() -> None:
        def total(version: str) -> int:
            return sum(
                lws["spec"]["replicas"]
                for lws in cluster.all("LeaderWorkerSet")
                if lws["spec"]["leaderWorkerTemplate"]["workerTemplate"]["spec"]["containers"][0]["image"] == version
            )

        def roles(version: str) -> Json:
            rolling = {"rolloutStrategy": {"rollingUpdateConfiguration": {"maxSurge": 1, "maxUnavailable": 0}}}
            made = [role(name, 4, version, spec=dict(rolling)) for name in ("prefill", "decode")]
            for one in made:
                pods = one["spec"]["leaderWorkerTemplate"]["workerTemplate"]
                pods["metadata"].setdefault("annotations", {})["simulation.phalanx.dev/ready-seconds"] = {
                    "v1": "0",
                    "v2": "1e6",
                    "v3": "20",
                }[version]
            return {"spec": {"roles": made}}

        async with world() as cluster:
            await cluster.apply(made(*roles("v1")["spec"]["roles"]))
            await done(cluster)
            await cluster.patch("DisaggregatedSet", "ds", roles("v2"))
            await cluster.eventually("LeaderWorkerSet", lambda found: total("v2") > 0)
            seen: list[tuple[int, int]] = []

            def note(found: list[Json]) -> bool:
                seen.append((total("v1"), total("v2")))
                return seen[-1] == (0, 0) and total("v3") == 8

            await cluster.patch("DisaggregatedSet", "ds", roles("v3"))
            await cluster.eventually("LeaderWorkerSet", note)
            assert any(first and not second for first, second in seen)
            assert not any(second and not first for first, second in seen)
            await done(cluster)

    asyncio.run(scenario())
