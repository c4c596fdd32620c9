"""Simulated drivers: the ResourceSlices that `phalanx up --devices` creates for every simulated node.

A spec names a driver, the number of devices per node and their properties: `gpu.example.com:8,nvlink=4`. Several specs
are separated by semicolons. Each driver gets a DeviceClass named after the driver without its domain (`gpu`), if there
is none yet. No hardware is behind these devices: pods that use them behave like all simulated pods.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from phalanx.base.errors import ConfigProblem
from phalanx.base.resources import DEVICE_CLASSES, RESOURCE_SLICES
from phalanx.model import names
from phalanx.model.groups.keys import HOSTNAME
from phalanx.model.kinds import Json as Json
from phalanx.model.quantity import from_units, is_valid, units

PCIE_ROOT = "resource.kubernetes.io/pcieRoot"  # attribute that all drivers share
MOST = 64  # devices of one driver on one node; partitions in one ResourceSlice
MOST_SETS = 8  # counter sets in one ResourceSlice
SHARES = 80  # shares into which the memory of a device can be divided, at least
MOST_PREFIX = 50  # characters of a driver before the first dot: names of devices begin with them
MOST_MODEL = 64  # characters of an attribute
PARTITIONS = ((1, "1g"), (2, "2g"), (3, "3g"), (7, "7g"))  # size in slices and name of each kind of partition
SLICES_OF_A_DEVICE = 7
CHANNELS = 8  # of a multi-node NVLink domain: as many gangs can use it at a time
_KEYS = ("nvlink", "pcie", "numa", "domain", "memory", "model", "profile")
PROFILES = ("whole", "mig", "shared")
_HELP = f"write it like gpu.example.com:8,nvlink=4; known are {', '.join(_KEYS)}"


class SimulatedDriver(msgspec.Struct, frozen=True):
    """The devices that one driver publishes for every node."""

    driver: str
    count: int
    nvlink: int = 0  # devices per NVLink domain of a node; 0: no such attribute (the same for the next three fields)
    pcie: int = 0  # devices per PCIe root
    numa: int = 0  # devices per NUMA node
    domain: int = 0  # nodes per multi-node NVLink domain
    memory: str = "80Gi"
    model: str = "simulated"
    profile: str = "whole"  # mig: partitions that share counters; shared: claims share the memory of a device

    def slices(self, node: str, index: int) -> list[Json]:
        """Build the ResourceSlices of one node; index: number of the node."""
        devices = list(self._devices(node, index))
        bodies: list[Json] = [{"devices": devices[at : at + MOST]} for at in range(0, len(devices), MOST)]
        if self.profile == "mig":
            counters = [self._counters(number) for number in range(self.count)]
            bodies += [{"sharedCounters": counters[at : at + MOST_SETS]} for at in range(0, len(counters), MOST_SETS)]
        pool = {"name": node, "generation": 1, "resourceSliceCount": len(bodies)}
        return [
            {
                "apiVersion": RESOURCE_SLICES.api_version,
                "kind": RESOURCE_SLICES.kind,
                "metadata": {"name": f"{node}-{self.driver}-{number}"},
                "spec": {"driver": self.driver, "nodeName": node, "pool": pool, **body},
            }
            for number, body in enumerate(bodies)
        ]

    def device_class(self) -> Json:
        return _class(self.prefix, self.driver, "device")

    def domain_slice(self, number: int, nodes: Sequence[str]) -> Json:
        """Return the slice of a multi-node NVLink domain, whose channels only its nodes can use."""
        name = f"{self.prefix}-domain-{number}"
        inside = {"key": HOSTNAME, "operator": "In", "values": list(nodes)}
        return {
            "apiVersion": RESOURCE_SLICES.api_version,
            "kind": RESOURCE_SLICES.kind,
            "metadata": {"name": name},
            "spec": {
                "driver": self.driver,
                "pool": {"name": name, "generation": 1, "resourceSliceCount": 1},
                "nodeSelector": {"nodeSelectorTerms": [{"matchExpressions": [inside]}]},
                "devices": [
                    {"name": f"channel-{channel}", "attributes": {"type": {"string": "channel"}}}
                    for channel in range(CHANNELS)
                ],
            },
        }

    def domain_class(self) -> Json:
        return _class(f"{self.prefix}-domain", self.driver, "channel")

    @property
    def prefix(self) -> str:
        return self.driver.split(".")[0]

    def _devices(self, node: str, index: int) -> Iterator[Json]:
        prefix = self.prefix
        for number in range(self.count):
            attributes = self._attributes(node, index, number)
            if self.profile == "mig":
                yield from self._partitions(prefix, number, attributes)
                continue
            device: Json = {"name": f"{prefix}-{number}", "attributes": attributes}
            device["capacity"] = {"memory": {"value": self.memory}}
            if self.profile == "shared":
                device["allowMultipleAllocations"] = True
                device["capacity"]["memory"]["requestPolicy"] = self._request_policy()
            yield device

    def _request_policy(self) -> Json:
        """Return the policy of shares: steps of at most 1/80 that divide the memory, if there are such steps."""
        total = units(self.memory)
        parts = next((parts for parts in range(SHARES, min(total, 10 * SHARES)) if total % parts == 0), 0)
        if not parts:
            return {"default": self.memory}
        step = from_units(total // parts, "BinarySI")
        return {"default": self.memory, "validRange": {"min": step, "step": step}}

    def _attributes(self, node: str, index: int, number: int) -> Json:
        found: Json = {
            "type": {"string": "device"},
            "model": {"string": self.model},
            "index": {"int": number},
            "uuid": {"string": f"{node}-{number}"},
        }
        if self.nvlink:
            found["nvlink"] = {"int": number // self.nvlink}
        if self.numa:
            found["numa"] = {"int": number // self.numa}
        if self.pcie:
            found[PCIE_ROOT] = {"string": f"pci0000:{number // self.pcie:02x}"}
        if self.domain:
            found["nvlinkDomain"] = {"string": f"domain-{index // self.domain}"}
        return found

    def _partitions(self, prefix: str, number: int, attributes: Json) -> Iterator[Json]:
        total = units(self.memory)
        for size, name in PARTITIONS:
            amounts = {
                "slices": {"value": str(size)},
                "memory": {"value": from_units(total * size // SLICES_OF_A_DEVICE, "BinarySI")},
            }
            for part in range(SLICES_OF_A_DEVICE // size):
                yield {
                    "name": f"{prefix}-{number}-{name}-{part}",
                    "attributes": {**attributes, "profile": {"string": name}, "parent": {"int": number}},
                    "capacity": {"memory": amounts["memory"]},
                    "consumesCounters": [{"counterSet": f"{prefix}-{number}", "counters": amounts}],
                }

    def _counters(self, number: int) -> Json:
        prefix = self.prefix
        amounts = {"slices": {"value": str(SLICES_OF_A_DEVICE)}, "memory": {"value": self.memory}}
        return {"name": f"{prefix}-{number}", "counters": amounts}


def _class(name: str, driver: str, kind: str) -> Json:
    expression = f'device.driver == "{driver}" && device.attributes["{driver}"].type == "{kind}"'
    return {
        "apiVersion": DEVICE_CLASSES.api_version,
        "kind": DEVICE_CLASSES.kind,
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}]},
    }


def parse_devices(text: str, path: str = "--devices") -> list[SimulatedDriver]:
    """Parse the drivers that `text` lists, separated by semicolons. Raises ConfigProblem."""
    found = [_driver(part.strip(), path) for part in text.split(";") if part.strip()]
    by_class: dict[str, str] = {}
    for each in found:
        if each.prefix in by_class:
            problem = f"{by_class[each.prefix]} has the device class {each.prefix} already"
            raise ConfigProblem(path, f"{each.driver!r}: {problem}; drivers must differ before the first dot")
        by_class[each.prefix] = each.driver
    return found


def _driver(text: str, path: str) -> SimulatedDriver:
    head, *settings = text.split(",")
    driver, _, count = head.partition(":")
    if not count.isascii() or not count.isdigit() or not 1 <= int(count) <= MOST:
        raise ConfigProblem(path, f"{head!r}: a driver and up to {MOST} devices per node; {_HELP}")
    if problems := names.dns_subdomain(driver):
        raise ConfigProblem(path, f"{driver!r}: {problems[0]}")
    if len(driver.split(".")[0]) > MOST_PREFIX:
        raise ConfigProblem(path, f"{driver!r}: at most {MOST_PREFIX} characters before the first dot")
    found: Json = {}
    for setting in settings:
        key, equals, value = setting.strip().partition("=")
        if key not in _KEYS or not equals or not value:
            raise ConfigProblem(path, f"{setting!r}: {_HELP}")
        found[key] = _value(key, value, path)
    return SimulatedDriver(driver, int(count), **found)


def _value(key: str, value: str, path: str) -> str | int:
    if key in ("nvlink", "pcie", "numa", "domain"):
        if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 10_000:
            raise ConfigProblem(path, f"{key}={value}: must be a number from 1")
        return int(value)
    if key == "memory" and (not is_valid(value) or units(value) <= 0):
        raise ConfigProblem(path, f"memory={value}: must be a quantity such as 80Gi")
    if key == "model" and len(value) > MOST_MODEL:
        raise ConfigProblem(path, f"model={value[:20]}…: at most {MOST_MODEL} characters")
    if key == "profile" and value not in PROFILES:
        raise ConfigProblem(path, f"profile={value}: known are {', '.join(PROFILES)}")
    return value
