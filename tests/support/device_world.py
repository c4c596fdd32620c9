"""An engine with devices: ResourceSlices, claims and pods that use them, and a world that allocates and releases."""

from __future__ import annotations

from typing import Any

import msgspec

from phalanx.base.clock import rfc3339
from phalanx.engine import decisions as d
from phalanx.engine import events as e
from phalanx.engine.engine import Engine
from phalanx.engine.explain import whatif
from phalanx.engine.explain.values import WhatIfAnswer
from phalanx.engine.framework.settings import EngineSettings
from phalanx.engine.state.claims import claims_of
from phalanx.model import objects as o
from phalanx.model.gates import Gates
from phalanx.model.objects.devices import EXTENDED_CLAIM_ANNOTATION, ConsumerReference, ResourceClaimStatus
from phalanx.model.quantity import nanos
from phalanx.serve.queries.manifests import Manifests
from phalanx.testing import builders as b
from support.manifests import container, job

DRIVER = "gpu.example.com"


Json = dict[str, Any]


def device_node(name: str, cpu: str = "8") -> o.Node:
    return b.node(name).cpu(cpu).mem("64Gi").build()


def device(name: str, **attributes: object) -> Json:
    typed = {
        key: {"bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "string": value}
        for key, value in attributes.items()
    }
    return {"name": name, "attributes": typed}


def published(name: str, *devices: Json, counters: Json | None = None) -> list[o.ResourceSlice]:
    bodies = [{"devices": list(devices)}]
    if counters is not None:
        sets = [{"name": key, "counters": {c: {"value": v} for c, v in each.items()}} for key, each in counters.items()]
        bodies.append({"sharedCounters": sets})
    pool = {"name": name, "generation": 1, "resourceSliceCount": len(bodies)}
    spec = {"driver": DRIVER, "nodeName": name, "pool": pool}
    return [
        msgspec.convert({"metadata": {"name": f"{name}-{n}"}, "spec": {**spec, **body}}, o.ResourceSlice)
        for n, body in enumerate(bodies)
    ]


def attached(name: str, *devices: Json) -> o.ResourceSlice:
    """A pool of network-attached devices that every node can use."""
    pool = {"name": name, "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "allNodes": True, "pool": pool, "devices": list(devices)}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, o.ResourceSlice)


def device_class(name: str = "gpu", **spec: Any) -> o.DeviceClass:
    spec["selectors"] = [{"cel": {"expression": f'device.driver == "{DRIVER}"'}}]
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, o.DeviceClass)


def claim(name: str, *requests: Json, constraints: list[Json] | None = None) -> o.ResourceClaim:
    spec = {"devices": {"requests": list(requests) or [asks()], "constraints": constraints or []}}
    meta = {"name": name, "namespace": "default", "uid": f"claim-{name}"}
    return msgspec.convert({"metadata": meta, "spec": spec}, o.ResourceClaim)


def asks(name: str = "r", count: int = 1, cel: str = "", **more: Any) -> Json:
    exactly: Json = {"deviceClassName": "gpu", "allocationMode": "ExactCount", "count": count, **more}
    if cel:
        exactly["selectors"] = [{"cel": {"expression": cel}}]
    return {"name": name, "exactly": exactly}


def consumer(name: str, *claims: str, priority: int = 0, cpu: str = "1", group: str = "") -> o.Pod:
    """A pod that uses these claims."""
    made = b.pod(name).uid(name).cpu(cpu).priority(priority)
    for claim_name in claims:
        made.claim(claim_name, claim_name)
    return (made.group(group) if group else made).build()


def gang_group(name: str, size: int, priority: int = 0) -> o.PodGroup:
    return b.pod_group(name).uid(name).gang(size).priority(priority).build()


class World:
    """An engine, and an API server and claim controller that do what they should."""

    def __init__(self, *objects: Any, gates: Gates | None = None, settings: EngineSettings | None = None) -> None:
        self._made_with = (settings, gates)
        self.engine = Engine(settings, gates)
        self.objects: dict[tuple[str, str], Any] = {}
        self.bound: dict[str, str] = {}
        self.evicted: list[str] = []
        self.messages: dict[str, str] = {}
        self.events: dict[str, str] = {}  # the last of each object
        self.fail: set[str] = set()  # claims whose writes fail
        self.slow = False  # consumers that are gone are not taken out of their claims
        self.now = 1000.0
        self.see(device_class(), *objects)

    def see(self, *objects: Any) -> World:
        for each in objects:
            for obj in each if isinstance(each, list) else [each]:
                kind = type(obj).__name__
                self.objects[kind, obj.metadata.name] = obj
                self.engine.apply(e.CHANGED_BY_KIND[kind](obj))  # type: ignore[call-arg,arg-type]
        return self

    def restart(self) -> World:
        """Start a new scheduler process, which knows only the objects."""
        self.engine = Engine(*self._made_with)
        return self.see(*self.objects.values())

    def gone(self, kind: str, name: str) -> World:
        obj = self.objects.pop((kind, name))
        self.engine.apply(e.Gone(kind, name, obj.metadata.namespace))
        if kind == "Pod":
            self.bound.pop(name, None)
            if not self.slow:
                self.release(name)
            extended = ("ResourceClaim", _extended_name(name))
            if extended in self.objects:
                self.gone(*extended)  # its owner is gone
        return self

    def release(self, pod_name: str) -> None:
        """What the ResourceClaim controller does about a pod that is gone."""
        for (kind, _), obj in list(self.objects.items()):
            if kind == "ResourceClaim" and any(
                (each.resource, each.name) == ("pods", pod_name) for each in obj.status.reserved_for
            ):
                left = [each for each in obj.status.reserved_for if each.name != pod_name]
                allocation = obj.status.allocation if left else None
                status = ResourceClaimStatus(allocation=allocation, reserved_for=left)
                self.see(msgspec.structs.replace(obj, status=status))

    def run(self, rounds: int = 60, *, stop_at: type[d.Decision] | None = None) -> World:
        """`stop_at`: end before the first decision of this kind is performed."""
        for _ in range(rounds):
            self.now += 2.0
            for decision in self.engine.step(self.now):
                if stop_at is not None and isinstance(decision, stop_at):
                    return self
                self._perform(decision)
            self.check()
        return self

    def conditions(self, claim_name: str, **status: str) -> World:
        """Write what a driver says about all devices of a claim."""
        held = self.objects["ResourceClaim", claim_name]
        conditions = [{"type": name, "status": value, "reason": "Seen"} for name, value in status.items()]
        devices = [
            {"driver": each.driver, "pool": each.pool, "device": each.device, "conditions": conditions}
            for each in held.status.allocation.devices.results
        ]
        body = {**msgspec.to_builtins(held.status), "devices": devices}
        return self.see(msgspec.structs.replace(held, status=msgspec.convert(body, type(held.status))))

    def _perform(self, decision: d.Decision) -> None:
        problem = ""
        if isinstance(decision, d.ReserveClaim):
            problem = e.PERMANENT if decision.name in self.fail else self._reserve(decision)
        elif isinstance(decision, d.CreateExtendedClaim):
            self._create_extended(decision)
        elif isinstance(decision, d.ReleaseClaim):
            old = self.objects.get(("ResourceClaim", decision.name))
            if old is not None:
                left = [each for each in old.status.reserved_for if each.uid != decision.pod]
                keep = left or not decision.deallocate
                status = ResourceClaimStatus(allocation=old.status.allocation if keep else None, reserved_for=left)
                self.see(msgspec.structs.replace(old, status=status))
        elif isinstance(decision, d.SetPodCondition):
            self.messages[decision.name] = f"{decision.reason}: {decision.message}"
        elif isinstance(decision, d.RecordEvent):
            self.events[decision.name] = decision.message
        self.engine.apply(e.Outcome(decision.id, problem))
        if isinstance(decision, d.Bind):
            self.bound[decision.name] = decision.node
            old = self.objects["Pod", decision.name]
            self.see(msgspec.structs.replace(old, spec=msgspec.structs.replace(old.spec, node_name=decision.node)))
        elif isinstance(decision, d.Evict):
            self.evicted.append(decision.name)
            self.gone("Pod", decision.name)

    def _reserve(self, decision: d.ReserveClaim) -> str:
        old = self.objects["ResourceClaim", decision.name]
        allocation = old.status.allocation or decision.allocation
        assert allocation is not None, "reserved without an allocation"
        if allocation.allocation_timestamp is None:
            allocation = msgspec.structs.replace(allocation, allocation_timestamp=rfc3339(self.now))
        others = [each for each in old.status.reserved_for if each.uid != decision.consumer.uid]
        reserved = [*others, decision.consumer]
        status = ResourceClaimStatus(allocation=allocation, reserved_for=reserved)
        self.see(msgspec.structs.replace(old, status=status))
        return ""

    def _create_extended(self, decision: d.CreateExtendedClaim) -> None:
        owner = {"apiVersion": "v1", "kind": "Pod", "name": decision.name, "uid": decision.uid, "controller": True}
        name = _extended_name(decision.name)
        meta = {"name": name, "namespace": decision.namespace, "uid": name, "ownerReferences": [owner]}
        meta["annotations"] = {EXTENDED_CLAIM_ANNOTATION: "true"}
        made = msgspec.convert({"metadata": meta}, o.ResourceClaim)
        consumer = ConsumerReference("", "pods", decision.name, decision.uid)
        status = ResourceClaimStatus(allocation=decision.allocation, reserved_for=[consumer])
        self.see(msgspec.structs.replace(made, spec=decision.spec, status=status))

    def devices(self, claim_name: str) -> list[str]:
        allocation = self.objects["ResourceClaim", claim_name].status.allocation
        return [] if allocation is None else [f"{r.pool}/{r.device}" for r in allocation.devices.results]

    def check(self) -> None:
        """No device is in two claims, no counter and no capacity is exceeded, and bound pods have their claims."""
        users: dict[tuple[str, str], list[str]] = {}
        left: dict[tuple[str, str, str], int] = {}  # capacity of devices that several claims may use
        for (kind, name), obj in self.objects.items():
            if kind == "ResourceSlice":
                for each in obj.spec.devices:
                    for capacity, amount in each.capacity.items():
                        key = (obj.spec.pool.name, each.name, capacity)
                        left[key] = left.get(key, 0) + nanos(amount.value)
            if kind == "ResourceClaim" and obj.status.allocation is not None:
                for result in obj.status.allocation.devices.results:
                    if result.share_id is None and not result.admin_access:
                        users.setdefault((result.pool, result.device), []).append(name)
                    for capacity, taken in result.consumed_capacity.items():
                        key = (result.pool, result.device, capacity)
                        left[key] = left.get(key, 0) - nanos(taken)
        assert min(left.values(), default=0) >= 0, left
        twice = {key: names for key, names in users.items() if len(names) > 1}
        assert not twice, twice
        for name, where in self.bound.items():
            for _, each in claims_of(self.objects["Pod", name]):
                places = {got.split("/")[0] for got in self.devices(each)}
                assert not [place for place in places if place != where and ("Node", place) in self.objects], name
                assert self.devices(each), f"{name} is bound without devices"


def _extended_name(pod: str) -> str:
    return f"{pod}-extended-resources"


def device_cluster(nodes: int = 2, devices: int = 2) -> World:
    world = World(gates=Gates({"DRAWorkloadResourceClaims": True}))
    for n in range(nodes):
        world.see(device_node(f"n{n}"), published(f"n{n}", *(device(f"d{i}", model="h100") for i in range(devices))))
    return world


def claim_template(name: str, count: int = 1, cel: str = "") -> Json:
    body = {"metadata": {}, "spec": {"devices": {"requests": [asks("r", count, cel)]}}}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": body,
    }


def claiming_job(name: str, pods: int, entry: Json) -> Json:
    """A gang Job; entry: how its pods refer to their claim."""
    spec = {
        "containers": [container(resources={"claims": [{"name": "gpu"}]})],
        "resourceClaims": [{"name": "gpu", **entry}],
    }
    return job(name, pods, gang=True, completionMode="Indexed", pod=spec)


def ask(world: World, *documents: Json, templates: list[Json] | None = None) -> tuple[WhatIfAnswer, list[str]]:
    gates = Gates({"DRAWorkloadResourceClaims": True})
    manifests = Manifests(gates, [], tuple(world.engine.profiles), templates or [])
    manifests.read(documents, "default")
    manifests.put_into(world.engine)
    return whatif(world.engine.scheduler, manifests.question), manifests.notes
