"""reservedFor of claims: pods that use a claim on their node are in it, however they got there."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.controllers.devices.consumers import claims_on_node, missing_consumer
from support.controller_world import Json, World, play

DRIVER = "gpu.example.com"


async def claim_with_devices(cluster: World) -> None:
    pool = {"name": "node-00000", "generation": 1, "resourceSliceCount": 1}
    devices = [{"name": "d0"}, {"name": "d1"}]
    spec: Json = {"driver": DRIVER, "nodeName": "node-00000", "pool": pool, "devices": devices}
    await cluster.create("ResourceSlice", "s", "", spec=spec)
    await cluster.create(
        "DeviceClass", "gpu", "", spec={"selectors": [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]}
    )
    request = {"name": "r", "exactly": {"deviceClassName": "gpu"}}
    await cluster.create("ResourceClaim", "c", spec={"devices": {"requests": [request]}})


def pod_spec(**more: Any) -> Json:
    return {
        "containers": [{"name": "c", "image": "i"}],
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}],
        **more,
    }


def consumers(claim: Json) -> list[str]:
    return [each["name"] for each in (claim.get("status") or {}).get("reservedFor") or ()]


def test_a_pod_created_on_a_node_is_added_to_an_allocated_claim() -> None:
    async def scenario(cluster: World) -> None:
        await claim_with_devices(cluster)
        await cluster.create("Pod", "p", spec=pod_spec())
        await cluster.until("ResourceClaim", "c", when=lambda each: consumers(each) == ["p"])
        await cluster.create("Pod", "q", spec=pod_spec(nodeName="node-00000"))
        await cluster.until("ResourceClaim", "c", when=lambda each: consumers(each) == ["p", "q"])
        await cluster.delete("Pod", "p")
        claim = await cluster.until("ResourceClaim", "c", when=lambda each: consumers(each) == ["q"])
        assert claim["status"]["allocation"]

    play(scenario, nodes=1)


@pytest.mark.parametrize("edited", [None, [{"resource": "pods", "name": "other", "uid": "1"}]])
def test_an_edited_claim_keeps_its_devices_while_a_pod_runs_with_them(edited: list[Json] | None) -> None:
    async def scenario(cluster: World) -> None:
        await claim_with_devices(cluster)
        await cluster.create("Pod", "p", spec=pod_spec())
        before = await cluster.until("ResourceClaim", "c", when=lambda each: consumers(each) == ["p"])
        await cluster.until("Pod", "p", when=lambda each: each["status"].get("phase") == "Running")
        await cluster.patch("ResourceClaim", "c", {"status": {"reservedFor": edited}}, subresource="status")
        after = await cluster.until("ResourceClaim", "c", when=lambda each: consumers(each) == ["p"])
        assert after["status"]["allocation"] == before["status"]["allocation"]

    play(scenario, nodes=1)


GROUP: Json = {
    "metadata": {"name": "g", "uid": "g-uid"},
    "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]},
}
CLAIM: Json = {"metadata": {"name": "c", "namespace": "default"}}


def bound(**more: Any) -> Json:
    spec = pod_spec(nodeName="n", schedulingGroup={"podGroupName": "g"})
    return {"metadata": {"name": "p", "uid": "p-uid", "namespace": "default"}, "spec": spec, **more}


def test_a_claim_of_a_group_is_reserved_for_the_group() -> None:
    consumer = {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "g-uid"}
    assert missing_consumer(bound(), GROUP, CLAIM, []) == consumer
    assert missing_consumer(bound(), GROUP, CLAIM, [consumer]) is None
    assert missing_consumer(bound(), None, CLAIM, []) == {"resource": "pods", "name": "p", "uid": "p-uid"}


def test_a_claim_that_was_made_for_another_pod_is_not_reserved() -> None:
    pod = bound(status={"resourceClaimStatuses": [{"name": "gpu", "resourceClaimName": "c"}]})
    pod["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimTemplateName": "t"}]
    assert claims_on_node(pod) == ["default/c"]
    owned = {**CLAIM["metadata"], "ownerReferences": [{"kind": "Pod", "name": "p", "uid": "x", "controller": True}]}
    assert missing_consumer(pod, None, {"metadata": owned}, []) is None
    owned["ownerReferences"][0]["uid"] = "p-uid"
    assert missing_consumer(pod, None, {"metadata": owned}, []) is not None


def test_pods_that_have_ended_use_no_claim() -> None:
    assert claims_on_node(bound(status={"phase": "Succeeded"})) == []
    assert claims_on_node({**bound(), "spec": pod_spec()}) == []
