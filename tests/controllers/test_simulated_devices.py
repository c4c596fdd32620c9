"""Devices of simulated drivers: what `phalanx up --devices` publishes."""

from __future__ import annotations

import pytest

from phalanx.base.errors import ConfigProblem
from phalanx.local.nodes.devices import parse_devices


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
    first, second = driver.domains(["n0", "n1", "n2"])
    term = second["spec"]["nodeSelector"]["nodeSelectorTerms"][0]["matchExpressions"][0]
    assert term["values"] == ["n2"] and first["metadata"]["name"] == "gpu-domain-0"


WRONG = """gpu gpu.example.com:0 gpu.example.com:x gpu.example.com:8,nvlink gpu.example.com:8,colour=red
gpu.example.com:8,memory=much gpu.example.com:8,profile=half gpu.example.com:8,nvlink=0"""


@pytest.mark.parametrize("text", WRONG.split())
def test_nonsense_is_refused(text: str):
    with pytest.raises(ConfigProblem):
        parse_devices(text)
