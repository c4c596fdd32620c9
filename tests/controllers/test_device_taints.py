"""Taints of devices: which pods are evicted, which stay, and when."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.controllers.devices import taint_rules
from support.controller_world import Json, World, condition, play

DRIVER = "gpu.example.com"


async def publish(cluster: World, *, taint: Json | None = None, generation: int = 1) -> None:
    devices = [{"name": "d0", **({"taints": [taint]} if taint else {})}, {"name": "d1"}]
    pool = {"name": "node-00000", "generation": generation, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": "node-00000", "pool": pool, "devices": devices}
    if generation > 1:
        await cluster.patch("ResourceSlice", "s", {"spec": spec}, "")
    else:
        await cluster.create("ResourceSlice", "s", "", spec=spec)


async def start(cluster: World, tolerations: list[Json] | None = None, *, of_group: bool = False) -> None:
    """One running pod with one claim for the first device."""
    await publish(cluster)
    selector = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    await cluster.create("DeviceClass", "gpu", "", spec={"selectors": selector})
    request: Json = {"deviceClassName": "gpu", "tolerations": tolerations or []}
    await cluster.create("ResourceClaim", "c", spec={"devices": {"requests": [{"name": "r", "exactly": request}]}})
    entry = {"name": "gpu", "resourceClaimName": "c"}
    spec: Json = {"containers": [{"name": "c", "image": "i"}], "resourceClaims": [entry]}
    if of_group:
        await cluster.create(
            "PodGroup", "g", spec={"schedulingPolicy": {"gang": {"minCount": 1}}, "resourceClaims": [entry]}
        )
        spec["schedulingGroup"] = {"podGroupName": "g"}
    await cluster.create("Pod", "p", spec=spec)
    await cluster.until("Pod", "p", when=lambda pod: pod["status"].get("phase") == "Running")
    claim = await cluster.until("ResourceClaim", "c", when=lambda each: bool(each["status"].get("reservedFor")))
    (result,) = claim["status"]["allocation"]["devices"]["results"]
    assert result["device"] == "d0"
    (consumer,) = claim["status"]["reservedFor"]
    assert consumer["resource"] == ("podgroups" if of_group else "pods")


def taint(**more: Any) -> Json:
    return {"key": "broken", "effect": "NoExecute", **more}


def targeted(pod: Json) -> bool:
    return condition(pod, "DisruptionTarget").get("reason") == "DeletionByDeviceTaintManager"


@pytest.mark.parametrize("of_group", [False, True])
@pytest.mark.parametrize("by_rule", [False, True])
def test_a_tainted_device_evicts_the_pods_that_use_it(by_rule: bool, of_group: bool) -> None:
    async def scenario(cluster: World) -> None:
        await start(cluster, of_group=of_group)
        pod = cluster.look("Pod", "p")
        assert pod is not None
        await cluster.patch("Pod", "p", {"metadata": {"finalizers": ["example.com/keep"]}})  # to see it go
        if by_rule:
            selector = {"driver": DRIVER, "pool": "node-00000", "device": "d0"}
            await cluster.create("DeviceTaintRule", "rule", "", spec={"deviceSelector": selector, "taint": taint()})
        else:
            await publish(cluster, taint=taint(), generation=2)
        await cluster.until("Pod", "p", when=lambda each: targeted(each) and "deletionTimestamp" in each["metadata"])

    play(scenario, nodes=1)


def test_a_taint_that_is_tolerated_or_on_another_device_evicts_nothing() -> None:
    async def scenario(cluster: World) -> None:
        await start(cluster, [{"key": "broken", "operator": "Exists"}])
        selector = {"driver": DRIVER, "pool": "node-00000", "device": "d1"}
        await cluster.create("DeviceTaintRule", "other", "", spec={"deviceSelector": selector, "taint": taint(key="x")})
        await publish(cluster, taint=taint(), generation=2)
        pod = cluster.look("Pod", "p")
        assert pod is not None and not targeted(pod) and "deletionTimestamp" not in pod["metadata"]
        await cluster.create(
            "DeviceTaintRule", "all", "", spec={"deviceSelector": {"driver": DRIVER}, "taint": taint(key="y")}
        )
        await cluster.gone("Pod", "p")

    play(scenario, nodes=1)


def of_rule(rule: Json) -> Json:
    return condition(rule, "EvictionInProgress")


def test_a_rule_says_what_it_would_evict_what_waits_and_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taint_rules, "PERIOD", 0.2)

    async def scenario(cluster: World) -> None:
        await start(cluster, [{"key": "broken", "operator": "Exists", "tolerationSeconds": 1}])
        selector = {"driver": DRIVER, "pool": "node-00000"}
        spec: Json = {"deviceSelector": selector, "taint": taint(effect="None")}
        await cluster.create("DeviceTaintRule", "rule", "", spec=spec)
        rule = await cluster.until("DeviceTaintRule", "rule", namespace="", when=lambda each: bool(of_rule(each)))
        assert of_rule(rule)["reason"] == "NoEffect" and of_rule(rule)["status"] == "False"
        assert of_rule(rule)["message"].startswith(
            "2 published devices selected. 1 allocated device selected. 1 pod would be evicted in 1 namespace if"
        )
        await cluster.patch("DeviceTaintRule", "rule", {"spec": {"taint": {"effect": "NoExecute"}}}, "")
        rule = await cluster.until(
            "DeviceTaintRule", "rule", namespace="", when=lambda each: of_rule(each)["observedGeneration"] == 2
        )
        assert of_rule(rule)["status"] == "True" and of_rule(rule)["reason"] == "PodsPendingEviction"
        assert of_rule(rule)["message"] == "1 pod needs to be evicted in 1 namespace."
        await cluster.gone("Pod", "p")
        rule = await cluster.until(
            "DeviceTaintRule", "rule", namespace="", when=lambda each: of_rule(each)["reason"] == "Completed"
        )
        assert of_rule(rule)["status"] == "False"
        assert of_rule(rule)["message"] == "1 pod evicted since starting the controller."

    play(scenario, nodes=1)


def test_a_taint_is_tolerated_for_some_seconds() -> None:
    async def scenario(cluster: World) -> None:
        await start(cluster, [{"key": "broken", "operator": "Exists", "tolerationSeconds": 1}])
        await publish(cluster, taint=taint(), generation=2)
        await cluster.gone("Pod", "p")

    play(scenario, nodes=1)


def test_the_claim_is_free_for_the_next_pod_after_an_eviction() -> None:
    async def scenario(cluster: World) -> None:
        await start(cluster)
        await publish(cluster, taint=taint(), generation=2)
        await cluster.gone("Pod", "p")
        await cluster.until("ResourceClaim", "c", when=lambda each: not (each.get("status") or {}).get("allocation"))
        entry = {"name": "gpu", "resourceClaimName": "c"}
        container = {"name": "c", "image": "i"}
        await cluster.create("Pod", "q", spec={"containers": [container], "resourceClaims": [entry]})
        await cluster.until("Pod", "q", when=lambda pod: pod["status"].get("phase") == "Running")
        claim = cluster.look("ResourceClaim", "c")
        assert claim is not None
        assert [each["device"] for each in claim["status"]["allocation"]["devices"]["results"]] == ["d1"]

    play(scenario, nodes=1)
