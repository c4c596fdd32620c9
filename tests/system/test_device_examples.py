"""The examples of devices, each on the cluster that its first lines start: every pod runs, with the devices it says."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from phalanx.model.kinds import Json
from support.local_cluster import LocalCluster, local_cluster

EXAMPLES = Path(__file__).parents[2] / "examples" / "devices"
PODS = "/api/v1/namespaces/default/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
SLICES = "/apis/resource.k8s.io/v1/resourceslices"
START = re.compile(r"Start with: (phalanx up .*)")
Found = list[dict[str, Json]]  # of each claim: the devices of its results, by pool and name


def one_domain(claims: Found) -> bool:
    """Each claim has two devices with one value of nvlink, and no device is in two claims."""
    domains = [Counter(str(each["attributes"]["nvlink"]) for each in claim.values()) for claim in claims]
    return all(list(each.values()) == [2] for each in domains) and len({key for c in claims for key in c}) == 8


def small_partitions(claims: Found) -> bool:
    return [each["attributes"]["profile"] for claim in claims for each in claim.values()] == [{"string": "1g"}] * 7


def one_root(claims: Found) -> bool:
    (claim,) = claims
    return (
        len(claim) == 2 and len({str(x["attributes"]["resource.kubernetes.io/pcieRoot"]) for x in claim.values()}) == 1
    )


def four_nodes(claims: Found) -> bool:
    """A channel for the group, and all devices of four nodes of its domain."""
    domains = {
        str(x["attributes"]["nvlinkDomain"]) for c in claims for x in c.values() if "nvlinkDomain" in x["attributes"]
    }
    return sorted(map(len, claims)) == [1, 8, 8, 8, 8] and len(domains) == 1


EXPECTED: dict[str, tuple[int, Callable[[Found], bool]]] = {
    "one-gpu": (1, lambda claims: [len(each) for each in claims] == [1]),
    "two-gpus-one-nvlink-domain": (4, one_domain),
    "mig-slices": (7, small_partitions),
    "shared-gpu": (4, lambda claims: len({key for claim in claims for key in claim}) == 1),
    "nic-and-gpu": (1, one_root),
    "gang-nvlink-domain": (4, four_nodes),
}


def test_every_example_of_devices_is_known() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.yaml")} == set(EXPECTED)


def cluster_of(text: str, directory: Path) -> LocalCluster:
    line = START.search(text)
    assert line is not None
    _, _, *options = shlex.split(line[1])
    chosen = dict(zip(options[::2], options[1::2], strict=True))
    cluster = local_cluster(
        directory, nodes=int(chosen.pop("--nodes", "4")), devices=chosen.pop("--devices"), movable=False
    )
    assert not chosen, "an option that this test does not know"
    cluster.start()
    return cluster


def running(found: Json) -> int:
    return sum(each["status"].get("phase") == "Running" for each in found["items"])


@pytest.mark.parametrize("name", EXPECTED)
def test_an_example_of_devices_runs_as_it_says(name: str, tmp_path: Path) -> None:
    text = (EXAMPLES / f"{name}.yaml").read_text()
    pods, right = EXPECTED[name]
    cluster = cluster_of(text, tmp_path)
    try:
        cluster.apply(text)
        cluster.wait(PODS, lambda found: running(found) == pods, 60)
        published = {
            (each["spec"]["pool"]["name"], device["name"]): device
            for each in cluster.list(SLICES)
            for device in each["spec"].get("devices") or ()
        }
        results = [each["status"]["allocation"]["devices"]["results"] for each in cluster.list(CLAIMS)]
        claims = [
            {f"{x['pool']}/{x['device']}": published[x["pool"], x["device"]] for x in result} for result in results
        ]
        assert right(claims), claims
    finally:
        cluster.stop()
