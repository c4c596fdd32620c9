"""Devices of simulated drivers: what `phalanx up --devices` publishes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from phalanx.base.errors import ConfigProblem
from phalanx.local.nodes.devices import parse_devices
from phalanx.model.gates import Gates
from support.controller_world import Json, World, play
from support.local_cluster import LocalCluster
from support.rules import rules_for


def test_devices_have_the_attributes_that_were_asked_for():
    (driver,) = parse_devices("gpu.example.com:8,nvlink=4,pcie=2,memory=40Gi,model=h100")
    (body,) = driver.slices("n", 0)
    devices = body["spec"]["devices"]
    assert [device["name"] for device in devices] == [f"gpu-{number}" for number in range(8)]
    assert [device["attributes"]["nvlink"]["int"] for device in devices] == [0, 0, 0, 0, 1, 1, 1, 1]
    assert devices[5]["attributes"]["resource.kubernetes.io/pcieRoot"] == {"string": "pci0000:02"}
    assert devices[0]["capacity"] == {"memory": {"value": "40Gi"}}


def test_partitions_share_the_counters_of_their_device():
    (driver,) = parse_devices("gpu.example.com:2,profile=mig")
    devices, counters = driver.slices("n", 0)
    assert [each["name"] for each in counters["spec"]["sharedCounters"]] == ["gpu-0", "gpu-1"]
    largest = next(device for device in devices["spec"]["devices"] if device["name"] == "gpu-1-7g-0")
    assert largest["consumesCounters"][0]["counterSet"] == "gpu-1"
    assert {each["spec"]["pool"]["resourceSliceCount"] for each in (devices, counters)} == {2}


def test_the_nodes_of_a_domain_share_its_channels():
    (driver,) = parse_devices("gpu.example.com:8,domain=2")
    second = driver.domain_slice(1, ["n2"])
    term = second["spec"]["nodeSelector"]["nodeSelectorTerms"][0]["matchExpressions"][0]
    assert term["values"] == ["n2"] and second["metadata"]["name"] == "gpu-domain-1"


def test_a_pod_runs_with_devices_for_its_extended_resources():
    async def scenario(cluster: World) -> None:
        (driver,) = parse_devices("gpu.example.com:2")
        for body in driver.slices("node-00000", 0):
            await cluster.create("ResourceSlice", body["metadata"]["name"], "", spec=body["spec"])
        spec: Json = {"extendedResourceName": "example.com/gpu"}
        spec["selectors"] = [{"cel": {"expression": 'device.driver == "gpu.example.com"'}}]
        await cluster.create("DeviceClass", "gpu", "", spec=spec)
        amount = {"example.com/gpu": "1"}
        container = {"name": "c", "image": "i", "resources": {"requests": amount, "limits": amount}}
        await cluster.create(
            "Pod", "p", spec={"containers": [container], "initContainers": [{**container, "name": "i"}]}
        )
        pod = await cluster.until("Pod", "p", when=lambda each: each["status"].get("phase") in ("Running", "Failed"))
        assert pod["status"]["phase"] == "Running", pod["status"]

    play(scenario, nodes=1)


@pytest.mark.parametrize(
    "text",
    [
        "gpu.example.com:16,profile=mig",
        "gpu.example.com:64,profile=mig,memory=141Gi,nvlink=8,numa=4,pcie=2,domain=4,model=b200",
        *(
            f"gpu.example.com:8,profile=shared,memory={amount}"
            for amount in ["1", "79", "97", "100", "141Gi", "192Gi", "80G", "1.5Gi"]
        ),
        f"{'g' * 50}.example.com:64,profile=mig",
    ],
)
def test_every_published_slice_is_one_that_the_api_server_accepts(text: str):
    (driver,) = parse_devices(text)
    bodies = driver.slices("node-00000", 3)
    validate = rules_for("resourceslices.resource.k8s.io", Gates()).validate_create
    assert validate is not None and [str(error) for body in bodies for error in validate(body)] == []
    assert {body["spec"]["pool"]["resourceSliceCount"] for body in bodies} == {len(bodies)}


WRONG = """gpu gpu.example.com:0 gpu.example.com:x gpu.example.com:8,nvlink gpu.example.com:8,colour=red
gpu.example.com:8,memory=much gpu.example.com:8,profile=half gpu.example.com:8,nvlink=0 gpu.example.com:8,memory=0
gpu.example.com:8,memory=-1Gi gpu.example.com:1;gpu.example.com:2 gpu.example.com:1;gpu.other.com:2"""


@pytest.mark.parametrize("text", WRONG.split())
def test_nonsense_is_refused(text: str):
    with pytest.raises(ConfigProblem):
        parse_devices(text)


def test_nodes_that_are_added_later_get_devices_and_take_them_along(start_cluster: Callable[..., LocalCluster]) -> None:
    cluster = start_cluster(nodes=1, devices="gpu.example.com:2,domain=2", run_scheduler=False)
    slices = "/apis/resource.k8s.io/v1/resourceslices"

    def published(node: str) -> Callable[[dict[str, Any]], bool]:
        return lambda found: any(each["spec"].get("nodeName") == node for each in found["items"])

    def domain(found: dict[str, Any]) -> tuple[list[str], int]:
        (body,) = [each for each in found["items"] if "nodeSelector" in each["spec"]]
        (term,) = body["spec"]["nodeSelector"]["nodeSelectorTerms"][0]["matchExpressions"]
        return term["values"], body["spec"]["pool"]["generation"]

    cluster.wait(slices, published("node-00000"))
    labels = {"simulation.phalanx.dev/simulated": "true", "kubernetes.io/hostname": "later"}
    body = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "later", "labels": labels}}
    for _ in range(2):  # a node of the same name again is another node
        cluster.create("/api/v1/nodes", body)
        cluster.wait(slices, lambda found: published("later")(found) and domain(found)[0] == ["later", "node-00000"])
        cluster.delete("/api/v1/nodes/later")
        cluster.wait(slices, lambda found: not published("later")(found) and domain(found)[0] == ["node-00000"])
    assert domain(cluster.get(slices))[1] == 5  # every change is a generation of the pool
