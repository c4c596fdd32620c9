"""Random problems of devices that use every feature together, and a solver that tries every choice.

The solver shares no code with the engine: it reads the raw objects, as a user would write them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import combinations, product
from typing import Any, NamedTuple

Json = dict[str, Any]

GPU, NIC = "gpu.example.com", "nic.example.com"
ROOT = "example.com/root"  # an attribute that both drivers publish
RACK = "topology.example.com/rack"
MOST = 32  # devices of one claim


class Problem(NamedTuple):
    nodes: list[Json]
    slices: list[Json]
    classes: list[Json]
    allocated: list[Json]  # claims that hold devices
    claims: list[Json]  # claims that need some


# ---- random problems


def random_problem(rng: random.Random, nodes: int = 3, claims: int = 3) -> Problem:
    names = [f"n{n}" for n in range(rng.randint(1, nodes))]
    made = [{"metadata": {"name": name, "labels": {RACK: rng.choice("ab")}}} for name in names]
    slices: list[Json] = []
    for name in names:
        if rng.random() < 0.9:
            slices += _pool(rng, GPU, name, {"nodeName": name}, names)
    if rng.random() < 0.4:
        where = rng.choice([{"allNodes": True}, {"nodeSelector": _in_rack(rng)}, {"perDeviceNodeSelection": True}])
        slices += _pool(rng, rng.choice([NIC, GPU]), "net", where, names)
    asked = [claim(f"c{n}", _claim_spec(rng)) for n in range(rng.randint(1, claims))]
    return Problem(made, slices, CLASSES, _allocated(rng, slices), asked)


def _selecting(name: str, *expressions: str) -> Json:
    selectors = [{"cel": {"expression": each}} for each in expressions]
    return {"metadata": {"name": name}, "spec": {"selectors": selectors, "config": [{"opaque": _opaque(name)}]}}


def claim(name: str, spec: Json) -> Json:
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "spec": spec}


def _in_rack(rng: random.Random) -> Json:
    rack = {"key": RACK, "operator": "In", "values": [rng.choice("ab")]}
    return {"nodeSelectorTerms": [{"matchExpressions": [rack]}]}


def _pool(rng: random.Random, driver: str, name: str, where: Json, nodes: list[str]) -> list[Json]:
    counters = {f"s{n}": {c: rng.randint(3, 9) for c in ("m", "k")} for n in range(rng.choice([0, 0, 1, 2]))}
    devices = [_device(rng, f"d{n}", driver, counters) for n in range(rng.randint(2, 5))]
    if "perDeviceNodeSelection" in where:
        for each in devices:
            each.update(
                rng.choice([{"nodeName": rng.choice(nodes)}, {"allNodes": True}, {"nodeSelector": _in_rack(rng)}])
            )
    bodies: list[Json] = [{"devices": devices}]
    if len(devices) > 1 and rng.random() < 0.3:
        bodies = [{"devices": devices[:1]}, {"devices": devices[1:]}]
    if counters:
        sets = [
            {"name": s, "counters": {c: {"value": str(v)} for c, v in each.items()}} for s, each in counters.items()
        ]
        bodies.append({"sharedCounters": sets})
    missing = rng.random() < 0.04
    pool = {"name": name, "generation": 1, "resourceSliceCount": len(bodies) + missing}
    return [
        {"metadata": {"name": f"{name}-{number}"}, "spec": {"driver": driver, "pool": pool, **where, **body}}
        for number, body in enumerate(bodies)
    ]


def _device(rng: random.Random, name: str, driver: str, counters: Json) -> Json:
    attributes: Json = {"kind": {"int": rng.randint(0, 2)}}
    if rng.random() < 0.85:
        attributes["numa"] = rng.choice([{"int": 0}, {"int": 1}, {"string": "0"}])
    if rng.random() < 0.8:
        attributes[ROOT] = {"string": rng.choice("xy")}
    made: Json = {"name": name, "attributes": attributes}
    if rng.random() < 0.15:
        made["taints"] = [{"key": "k", "value": "v", "effect": rng.choice(["NoSchedule", "NoExecute", "None"])}]
    if rng.random() < 0.4:
        made["capacity"] = {"mem": _capacity(rng)}
        if rng.random() < 0.4:
            made["capacity"]["bw"] = {"value": str(rng.randint(2, 6))}
        if rng.random() < 0.7:
            made["allowMultipleAllocations"] = True
    if counters and rng.random() < 0.8:
        sets = rng.sample(sorted(counters), rng.randint(1, len(counters)))
        made["consumesCounters"] = [
            {
                "counterSet": s,
                "counters": {c: {"value": str(rng.randint(1, 4))} for c in rng.sample("mk", rng.randint(1, 2))},
            }
            for s in sets
        ]
    return made


def _capacity(rng: random.Random) -> Json:
    policy = rng.choice([
        None,
        {"default": "1"},
        {"default": "2", "validValues": ["2", "4", "8"]},
        {"default": "2", "validRange": {"min": "2", "max": "6", "step": "2"}},
        {"default": "1", "validRange": {"min": "1", "max": "5"}},
    ])  # fmt: skip
    return {"value": str(rng.randint(4, 8)), **({"requestPolicy": policy} if policy else {})}


def _claim_spec(rng: random.Random) -> Json:
    requests = [_request(rng, f"r{n}") for n in range(rng.choice([1, 1, 1, 2, 3]))]
    names = [each["name"] for each in requests]
    names += [f"{each['name']}/{sub['name']}" for each in requests for sub in each.get("firstAvailable", ())]
    constraints = []
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        field = rng.choice(["matchAttribute", "matchAttribute", "distinctAttribute"])
        concerned = rng.sample(names, rng.randint(1, len(names))) if rng.random() < 0.4 else []
        attribute = rng.choice([f"{GPU}/numa", f"{GPU}/kind", f"{NIC}/kind", ROOT, ROOT])
        constraints.append({field: attribute, **({"requests": concerned} if concerned else {})})
    config = [
        {"requests": rng.sample(names, rng.randint(0, len(names))), "opaque": _opaque(f"c{n}")}
        for n in range(rng.choice([0, 0, 1, 2]))
    ]
    return {"devices": {"requests": requests, "constraints": constraints, "config": config}}


def _opaque(name: str) -> Json:
    return {"driver": GPU, "parameters": {"name": name}}


def _request(rng: random.Random, name: str) -> Json:
    if rng.random() < 0.3:
        return {"name": name, "firstAvailable": [{"name": f"s{n}", **_part(rng)} for n in range(rng.randint(2, 3))]}
    part = _part(rng)
    if rng.random() < 0.1:
        part["adminAccess"] = True
    return {"name": name, "exactly": part}


def _part(rng: random.Random) -> Json:
    part: Json = {"deviceClassName": rng.choice(["gpu"] * 6 + ["nic", "any"])}
    if rng.random() < 0.15:
        part["allocationMode"] = "All"
    else:
        part.update(allocationMode="ExactCount", count=rng.choice([1, 1, 1, 1, 2, 3]))
    chosen = [] if part["deviceClassName"] != "gpu" else sorted(SELECTORS)
    if chosen and rng.random() < 0.4:
        part["selectors"] = [{"cel": {"expression": rng.choice(chosen)}}]
    if rng.random() < 0.25:
        part["capacity"] = {"requests": {rng.choice(["mem", "mem", "bw"]): str(rng.randint(1, 4))}}
    if rng.random() < 0.2:
        part["tolerations"] = [
            rng.choice(
                [{"operator": "Exists"}, {"key": "k", "operator": "Equal", "value": "v", "effect": "NoSchedule"}]
            )
        ]
    return part


def _allocated(rng: random.Random, slices: list[Json]) -> list[Json]:
    """Return claims that hold some of the devices already; what they hold may exceed counters, as after a change."""
    made = []
    for body in slices:
        for device in body["spec"].get("devices", ()):
            if rng.random() > 0.25:
                continue
            pool = body["spec"]["pool"]["name"]
            result: Json = {"request": "r", "driver": body["spec"]["driver"], "pool": pool, "device": device["name"]}
            if rng.random() < 0.15:
                result["adminAccess"] = True
            elif device.get("allowMultipleAllocations") and rng.random() < 0.9:
                result["shareID"] = f"00000000-0000-0000-0000-{len(made):012d}"
                result["consumedCapacity"] = {
                    name: str(rng.randint(1, min(3, int(each["value"])))) for name, each in device["capacity"].items()
                }
            held = claim(
                f"old{len(made)}", {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "any"}}]}}
            )
            held["status"] = {"allocation": {"devices": {"results": [result]}}}
            made.append(held)
    return made


CLASSES = [
    _selecting("gpu", f'device.driver == "{GPU}"'),
    _selecting("nic", f'device.driver == "{NIC}"'),
    _selecting("any"),
]
SELECTORS = {
    f'device.attributes["{GPU}"].kind <= 1': lambda d: d.driver == GPU and d.value(f"{GPU}/kind") <= ("int", 1),
    f'device.attributes["{GPU}"].kind == 0': lambda d: d.driver == GPU and d.value(f"{GPU}/kind") == ("int", 0),
    "device.allowMultipleAllocations == true": lambda d: d.multi,
    "device.allowMultipleAllocations == false": lambda d: not d.multi,
}


# ---- every choice


class Device(NamedTuple):
    driver: str
    pool: str
    name: str
    body: Json
    where: Json  # of the slice or of the device
    multi: bool

    def value(self, attribute: str) -> tuple[str, object] | None:
        found = self.body["attributes"].get(attribute)
        if found is None and attribute.startswith(f"{self.driver}/"):
            found = self.body["attributes"].get(attribute.removeprefix(f"{self.driver}/"))
        return None if found is None else next(iter(found.items()))


Key = tuple[str, str, str]


class _Taken(NamedTuple):
    """What is used so far; immutable, so that going back costs nothing."""

    whole: frozenset[Key]
    shares: tuple[tuple[Key, str, int], ...]  # device, capacity, amount


class Reference:
    """Whether claims can be allocated on nodes, by trying every choice."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.devices: list[Device] = []
        self.broken: list[tuple[Json, list[Json]]] = []  # incomplete pools: where their slices are
        self.counters: dict[tuple[str, str, str, str], int] = {}
        pools: dict[tuple[str, str], list[Json]] = {}
        for each in problem.slices:
            pools.setdefault((each["spec"]["driver"], each["spec"]["pool"]["name"]), []).append(each["spec"])
        for (driver, pool), specs in sorted(pools.items()):
            if len(specs) != specs[0]["pool"]["resourceSliceCount"]:
                self.broken.append((specs[0], [d for spec in specs for d in spec.get("devices", ())]))
                continue
            for spec in specs:
                for shared in spec.get("sharedCounters", ()):
                    for name, amount in shared["counters"].items():
                        self.counters[driver, pool, shared["name"], name] = int(amount["value"])
                for body in spec.get("devices", ()):
                    where = body if spec.get("perDeviceNodeSelection") else spec
                    multi = bool(body.get("allowMultipleAllocations"))
                    self.devices.append(Device(driver, pool, body["name"], body, where, multi))
        whole, shares = [], []
        for each in problem.allocated:
            for result in each["status"]["allocation"]["devices"]["results"]:
                key = (result["driver"], result["pool"], result["device"])
                if result.get("adminAccess"):
                    continue
                if "shareID" in result:
                    shares += [(key, name, int(amount)) for name, amount in result["consumedCapacity"].items()]
                else:
                    whole.append(key)
        self.start = _Taken(frozenset(whole), tuple(shares))

    def possible(self, claims: Sequence[tuple[Json, Json]]) -> bool:
        """Return True if these claims can be allocated together, each on its node."""
        if any(part.get("allocationMode") == "All" and self.unusable(node) for body, node in claims
               for part in _parts(body["spec"]["devices"]).values()):  # fmt: skip
            return False
        return self._claims(list(claims), self.start)

    def undecided(self) -> bool:
        """Return True if requests for all devices must wait until a pool is complete, wherever they could go."""
        parts = [part for each in self.problem.claims for part in _parts(each["spec"]["devices"]).values()]
        return bool(self.broken) and any(part.get("allocationMode") == "All" for part in parts)

    def reaches(self, where: Json, node: Json) -> bool:
        if "nodeName" in where:
            return bool(where["nodeName"] == node["metadata"]["name"])
        if where.get("allNodes"):
            return True
        if "nodeSelector" in where:
            (rule,) = where["nodeSelector"]["nodeSelectorTerms"][0]["matchExpressions"]
            return node["metadata"]["labels"].get(rule["key"]) in rule["values"]
        return False

    def unusable(self, node: Json) -> bool:
        """Return True if the node sees an incomplete pool, of which requests for all devices must know."""
        return any(
            any(self.reaches(each, node) for each in devices)
            if spec.get("perDeviceNodeSelection")
            else self.reaches(spec, node)
            for spec, devices in self.broken
        )

    def check(self, results: Sequence[Json], claims: Sequence[tuple[Json, Json]]) -> None:
        """Raise AssertionError if these allocations of claims, each on its node and in their order, break a rule."""
        taken: _Taken | None = self.start
        for (body, node), result in zip(claims, results, strict=True):
            spec, mine = body["spec"]["devices"], []
            parts = _parts(spec)
            for each in result["devices"]["results"]:
                key = (each["driver"], each["pool"], each["device"])
                device = next(d for d in self.devices if (d.driver, d.pool, d.name) == key)
                part, admin = parts[each["request"]], bool(each.get("adminAccess"))
                assert self.reaches(device.where, node) and _selected(part, device), key
                assert admin == bool(part.get("adminAccess")), key
                assert taken is not None
                taken = self._take(taken, part, device, admin, mine)
                assert taken is not None, (key, mine)
                if device.multi and not admin:
                    consumed = {name: int(amount) for name, amount in each["consumedCapacity"].items()}
                    assert consumed == _amounts(part, device) and each["shareID"], key
                mine.append((each["request"], device, admin))
            assert _kept(spec.get("constraints", ()), mine) and len(mine) <= MOST
            self._complete(spec, parts, [(name, device) for name, device, _ in mine], node)

    def _complete(self, spec: Json, parts: dict[str, Json], mine: list[tuple[str, Device]], node: Json) -> None:
        """Check that every request got as many devices as it asks for, all different, of one alternative."""
        for request in spec["requests"]:
            names = {name for name, _ in mine if name.split("/")[0] == request["name"]}
            assert len(names) == 1, (request["name"], names)
            (chosen,) = names
            devices = [device for name, device in mine if name == chosen]
            part = parts[chosen]
            every = [d for d in self.devices if self.reaches(d.where, node) and _selected(part, d)]
            need = len(every) if part.get("allocationMode") == "All" else part["count"]
            assert len(devices) == need == len({(d.driver, d.pool, d.name) for d in devices}), chosen

    def _claims(self, claims: list[tuple[Json, Json]], taken: _Taken) -> bool:
        if not claims:
            return True
        (body, node), rest = claims[0], claims[1:]
        spec = body["spec"]["devices"]
        parts = _parts(spec)
        options = [
            [(name, part) for name, part in parts.items() if name.split("/")[0] == request["name"]]
            for request in spec["requests"]
        ]
        visible = [each for each in self.devices if self.reaches(each.where, node)]
        return any(
            any(self._claims(rest, after) for after in self._requests(list(chosen), [], visible, spec, node, taken))
            for chosen in product(*options)
        )

    def _requests(
        self,
        chosen: list[tuple[str, Json]],
        mine: list[tuple[str, Device, bool]],
        visible: list[Device],
        spec: Json,
        node: Json,
        taken: _Taken,
    ) -> Iterator[_Taken]:
        if len(mine) > MOST or not _kept(spec.get("constraints", ()), mine):
            return
        if not chosen:
            yield taken
            return
        (name, part), rest = chosen[0], chosen[1:]
        fitting = [each for each in visible if _selected(part, each)]
        everything = part.get("allocationMode") == "All"
        if everything and not fitting:
            return
        need = len(fitting) if everything else part.get("count", 1)
        admin = bool(part.get("adminAccess"))
        for some in combinations(fitting, need):
            after: _Taken | None = taken
            for device in some:
                after = self._take(after, part, device, admin, mine) if after is not None else None
            if after is not None:
                yield from self._requests(rest, [*mine, *((name, d, admin) for d in some)], visible, spec, node, after)

    def _take(
        self, taken: _Taken, part: Json, device: Device, admin: bool, mine: list[tuple[str, Device, bool]]
    ) -> _Taken | None:
        if not _tolerated(part, device):
            return None
        key = (device.driver, device.pool, device.name)
        twice = any(other is device for _, other, _ in mine)
        if twice and not device.multi:
            return None
        if admin:
            return taken
        if key in taken.whole:
            return None
        whole, shares = taken
        if device.multi:
            amounts = _amounts(part, device)
            assert amounts is not None
            for capacity, amount in amounts.items():
                used = sum(each for owner, name, each in shares if owner == key and name == capacity)
                if used + amount > int(device.body["capacity"][capacity]["value"]):
                    return None
            shares = (*shares, *((key, name, amount) for name, amount in amounts.items()))
        else:
            if any(owner == key for owner, _, _ in shares):
                return None
            whole = whole | {key}
        after = _Taken(whole, shares)
        return after if self._counted(after, device, taken) else None

    def _counted(self, after: _Taken, device: Device, before: _Taken) -> bool:
        """Return True if the counters of a device that was unused suffice."""
        key = (device.driver, device.pool, device.name)
        if key in _used(before):
            return True
        used = _used(after)
        for consumed in device.body.get("consumesCounters", ()):
            for name in consumed["counters"]:
                counter = (device.driver, device.pool, consumed["counterSet"], name)
                total = sum(
                    int(each["counters"][name]["value"])
                    for other in self.devices
                    if (other.driver, other.pool, other.name) in used and (other.driver, other.pool) == key[:2]
                    for each in other.body.get("consumesCounters", ())
                    if each["counterSet"] == consumed["counterSet"] and name in each["counters"]
                )
                if total > self.counters[counter]:
                    return False
        return True


def _parts(spec: Json) -> dict[str, Json]:
    """Return requests and alternatives by their full names."""
    found = {}
    for request in spec["requests"]:
        if "exactly" in request:
            found[request["name"]] = request["exactly"]
        for sub in request.get("firstAvailable", ()):
            found[f"{request['name']}/{sub['name']}"] = sub
    return found


def _used(taken: _Taken) -> set[Key]:
    return {*taken.whole, *(key for key, _, _ in taken.shares)}


def _selected(part: Json, device: Device) -> bool:
    driver = {"gpu": GPU, "nic": NIC}.get(part["deviceClassName"])
    if driver is not None and device.driver != driver:
        return False
    if not all(SELECTORS[each["cel"]["expression"]](device) for each in part.get("selectors", ())):
        return False
    return _amounts(part, device) is not None


def _tolerated(part: Json, device: Device) -> bool:
    for taint in device.body.get("taints", ()):
        if taint["effect"] != "None" and not any(
            each["operator"] == "Exists"
            or (each["key"], each["value"], each["effect"]) == (taint["key"], taint["value"], taint["effect"])
            for each in part.get("tolerations", ())
        ):
            return False
    return True


def _amounts(part: Json, device: Device) -> dict[str, int] | None:
    """Return what a request takes of each capacity of an unused device; None if it cannot."""
    asked = part.get("capacity", {}).get("requests", {})
    offered = device.body.get("capacity", {})
    if any(name not in offered for name in asked):
        return None
    found = {}
    for name, capacity in offered.items():
        value, policy = int(capacity["value"]), capacity.get("requestPolicy") or {}
        default = int(policy["default"]) if "default" in policy else value
        valid = [int(each) for each in policy.get("validValues", ())]
        limits = {key: int(each) for key, each in policy.get("validRange", {}).items()}
        if limits:
            step = limits.get("step", 0)
            valid = [n for n in range(limits["min"], limits["max"] + 1) if not step or (n - limits["min"]) % step == 0]
        amount = default if name not in asked else int(asked[name])
        if name in asked and valid:
            larger = [each for each in valid if each >= amount]
            if not larger:
                return None
            amount = larger[0]
        if amount > value:
            return None
        found[name] = amount
    return found


def _kept(constraints: Sequence[Json], mine: list[tuple[str, Device, bool]]) -> bool:
    for each in constraints:
        attribute = each.get("matchAttribute") or each["distinctAttribute"]
        names = each.get("requests", ())
        values = [
            d.value(attribute) for name, d, _ in mine if not names or name in names or name.split("/")[0] in names
        ]
        if None in values:
            return False
        allowed = len(values) if "distinctAttribute" in each else min(1, len(values))
        if len(set(values)) != allowed:
            return False
    return True
