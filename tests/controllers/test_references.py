"""Pods wait for the ConfigMaps and Secrets they cannot start without, and say so; simulated nodes and statuses."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from phalanx.local.nodes.topology import parse_topology
from support.in_process import inside

Json = dict[str, Any]


def pod(*volumes: Json, env: list[Json] | None = None, env_from: list[Json] | None = None) -> Json:
    container: Json = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
    container |= {"env": env} if env else {}
    container |= {"envFrom": env_from} if env_from else {}
    return {"nodeName": "node-0", "containers": [container], "volumes": list(volumes)}


def config_map_key(**more: Any) -> list[Json]:
    return [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k", **more}}}]


def first(obj: Json) -> Json:
    statuses: list[Json] = (obj.get("status") or {}).get("containerStatuses") or [{}]
    return statuses[0]


def waiting(obj: Json) -> str:
    return str(((first(obj).get("state") or {}).get("waiting") or {}).get("reason") or "")


def state(status: Json) -> str:
    (name, details), *_ = status["state"].items()
    return details.get("reason") or name


@pytest.mark.parametrize(
    ("init", "main", "states", "initialized"),
    [
        ([{}, {"env": config_map_key()}, {}], {}, "Completed CreateContainerConfigError PodInitializing", False),
        ([{"restartPolicy": "Always"}, {}], {"env": config_map_key()}, "running Completed", True),
    ],
    ids=["init", "main"],
)
def test_init_containers_say_what_is_missing_in_their_turn(
    init: list[Json], main: Json, states: str, initialized: bool
) -> None:
    """As a kubelet: the ones before are over, the ones after and the containers wait for them."""

    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            spec = {
                "nodeName": cluster.names("Node")[0],
                "initContainers": [{"name": f"i{at}", "image": "i", **each} for at, each in enumerate(init)],
                "containers": [{"name": "c", "image": "i", **main}],
            }
            await cluster.create("Pod", "p", spec=spec)
            reason = "CreateContainerConfigError" if main else "PodInitializing"
            status = (await cluster.until("Pod", "p", when=lambda o: waiting(o) == reason))["status"]
            assert " ".join(map(state, status["initContainerStatuses"])) == states
            known = {each["type"]: each for each in status["conditions"]}
            assert (known["Initialized"]["status"] == "True") == initialized
            await cluster.create("ConfigMap", "c", data={"k": "v"})
            status = (await cluster.until("Pod", "p", when=lambda o: o["status"].get("phase") == "Running"))["status"]
            known = {each["type"]: each for each in status["conditions"]}
            assert not [each for each in known.values() if each["status"] != "True" or "reason" in each]
            assert "waiting" not in str(status["initContainerStatuses"])

    asyncio.run(asyncio.wait_for(scenario(), 60))


@pytest.mark.parametrize(
    ("spec", "reason", "event"),
    [
        (pod({"name": "v", "configMap": {"name": "c"}}), "ContainerCreating", "FailedMount"),
        (
            pod({"name": "v", "projected": {"sources": [{"configMap": {"name": "c"}}]}}),
            "ContainerCreating",
            "FailedMount",
        ),
        (pod(env=config_map_key()), "CreateContainerConfigError", "Failed"),
        (pod(env_from=[{"configMapRef": {"name": "c"}}]), "CreateContainerConfigError", "Failed"),
    ],
)
def test_a_pod_waits_for_its_config_map_and_starts_when_it_comes(spec: Json, reason: str, event: str) -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            name = cluster.names("Node")[0]
            await cluster.create("Pod", "p", spec={**spec, "nodeName": name})
            await cluster.until("Pod", "p", when=lambda o: waiting(o) == reason)
            found = await cluster.eventually("Event", lambda all_: any(e["reason"] == event for e in all_))
            assert any('configmap "c" not found' in e["message"] for e in found)
            await cluster.create("ConfigMap", "c", data={"k": "v"})
            await cluster.until("Pod", "p", when=lambda o: o["status"].get("phase") == "Running")

    asyncio.run(scenario())


def test_secrets_count_too_and_optional_ones_do_not() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            name = cluster.names("Node")[0]
            optional = pod(
                {"name": "v", "secret": {"secretName": "s", "optional": True}}, env=config_map_key(optional=True)
            )
            needed = pod({"name": "v", "secret": {"secretName": "s"}})
            await cluster.create("Pod", "free", spec={**optional, "nodeName": name})
            await cluster.create("Pod", "held", spec={**needed, "nodeName": name})
            await cluster.until("Pod", "free", when=lambda o: o["status"].get("phase") == "Running")
            await cluster.until("Pod", "held", when=lambda o: waiting(o) == "ContainerCreating")

    asyncio.run(scenario())


def test_statuses_say_from_the_start_what_containers_were_given() -> None:
    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            name = cluster.names("Node")[0]
            plain = {"name": "plain", "image": "i"}
            spec = pod()
            await cluster.create(
                "Pod", "p", spec={**spec, "containers": [*spec["containers"], plain], "nodeName": name}
            )
            found = await cluster.until("Pod", "p", when=lambda o: o["status"].get("phase") == "Running")
            given, nothing = found["status"]["containerStatuses"]
            assert given["resources"] == {"requests": {"cpu": "1"}} and given["allocatedResources"] == {"cpu": "1"}
            assert nothing["resources"] == {} and "allocatedResources" not in nothing

    asyncio.run(scenario())


def test_simulated_gpus_have_the_labels_of_the_gpu_operator() -> None:
    labels = parse_topology("gpus=4").gpu_labels
    assert labels["nvidia.com/gpu.count"] == "4" and labels["nvidia.com/gpu.product"].startswith("NVIDIA-")
    assert parse_topology("gpus=0").gpu_labels == {}


@pytest.mark.parametrize(
    ("kind", "volume", "message"),
    [
        ("ConfigMap", {"configMap": {"name": "c", "items": [{"key": "k", "path": "p"}]}}, "config key: k"),
        ("Secret", {"secret": {"secretName": "c", "items": [{"key": "k", "path": "p"}]}}, "secret key: k"),
        (
            "ConfigMap",
            {"projected": {"sources": [{"configMap": {"name": "c", "items": [{"key": "k", "path": "p"}]}}]}},
            "config key: k",
        ),
    ],
)
def test_a_pod_waits_for_the_keys_that_a_volume_names(kind: str, volume: Json, message: str) -> None:
    data = "data" if kind == "ConfigMap" else "stringData"

    async def scenario() -> None:
        async with inside(nodes=1) as cluster:
            await cluster.create(kind, "c", **{data: {"other": "v"}})
            await cluster.create("Pod", "p", spec={**pod({"name": "v"} | volume), "nodeName": cluster.names("Node")[0]})
            await cluster.until("Pod", "p", when=lambda o: waiting(o) == "ContainerCreating")
            found = await cluster.eventually("Event", lambda all_: [e for e in all_ if e["reason"] == "FailedMount"])
            assert any(e["message"].endswith(f"references non-existent {message}") for e in found)
            await cluster.patch(kind, "c", {data: {"k": "v"}})
            await cluster.until("Pod", "p", when=lambda o: o["status"].get("phase") == "Running")

    asyncio.run(scenario())
