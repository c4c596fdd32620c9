"""Compiled requests of a claim: requests with resolved classes, alternatives, constraints.

Claims with equal specifications share one `ClaimSpec` with its cached results.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping

import msgspec

from phalanx.engine.devices.capacity import consumption
from phalanx.engine.devices.inventory import Device, qualified
from phalanx.engine.devices.selectors import DeviceSelectors, SelectorFailure, Verdict
from phalanx.model.objects import DeviceClass, ResourceClaim
from phalanx.model.objects.devices import (
    ClaimConfiguration,
    DeviceSubRequest,
    DeviceToleration,
    ExactDeviceRequest,
    ResourceClaimSpec,
)
from phalanx.model.quantity import BadQuantity, nanos
from phalanx.model.tolerations import tolerates_device

ALL = "All"
THE_CLAIM = "the claim"  # placeholder for the claim's name in messages of shared requests


class BadClaim(Exception):
    """The claim can never be allocated: a class is missing, or it contradicts itself."""


class AllocationRequest(msgspec.Struct, eq=False):
    """One request or one alternative of a request, with its class. Compare by identity."""

    name: str  # "req", or "req/alternative"
    main: str  # "req"
    class_name: str
    selectors: tuple[tuple[str, str], ...]  # (expression, its place), those of the class first
    everything: bool  # allocationMode All
    count: int
    admin: bool
    tolerations: tuple[DeviceToleration, ...]
    capacity: dict[str, int]  # nano-units by name
    config: tuple[ClaimConfiguration, ...]  # of the class
    answers: dict[Device, Verdict] = msgspec.field(default_factory=dict)
    shares: dict[Device, dict[str, int] | None] = msgspec.field(default_factory=dict)  # cache of `takes`

    def selects(self, device: Device, selectors: DeviceSelectors) -> Verdict:
        """Return True if class and request select a device, apart from taints and other claims."""
        answer = self.answers.get(device)
        if answer is None:
            answer = self.answers[device] = self._selects(device, selectors)
        return answer

    def _selects(self, device: Device, selectors: DeviceSelectors) -> Verdict:
        for expression, where in self.selectors:
            verdict = selectors.verdict(expression, device)
            if isinstance(verdict, SelectorFailure):
                kind = str(verdict)
                at = f" on device {'/'.join(device.key)}" if kind.startswith("CEL runtime error") else ""
                return SelectorFailure(f"{where}{at}: {kind}")
            if not verdict:
                return False
        return self.takes(device) is not None if self.capacity or device.multiple else True

    def takes(self, device: Device) -> dict[str, int] | None:
        """Return the capacity taken of an unused device; None if the device cannot serve the request."""
        if device not in self.shares:
            asked = {_published(name, device): amount for name, amount in self.capacity.items()}
            self.shares[device] = consumption(device.capacity, asked)
        return self.shares[device]

    def tolerates(self, device: Device) -> bool:
        return all(
            any(tolerates_device(toleration, taint) for toleration in self.tolerations) for taint in device.taints
        )


class AttributeConstraint(msgspec.Struct, frozen=True):
    attribute: str
    distinct: bool
    requests: frozenset[str]  # names as in the claim; empty: all

    def concerns(self, request: AllocationRequest) -> bool:
        return not self.requests or request.main in self.requests or request.name in self.requests


class ClaimSpec(msgspec.Struct, eq=False):
    """Compared by identity: equal claims share one."""

    requests: tuple[tuple[AllocationRequest, ...], ...]  # alternatives of each request, best first
    constraints: tuple[AttributeConstraint, ...]
    config: tuple[ClaimConfiguration, ...]
    problem: str = ""  # why it cannot be allocated
    error: str = ""  # the same if a retry may help: SchedulerError
    # (version of the inventory, (request, why no node can ever serve it)…): cache of `facts.device_facts`
    facts: tuple[int, tuple[tuple[str, str], ...]] = (-1, ())
    # (version of the inventory, whether it may get devices that several nodes can use): cache of `DeviceState`
    reaches: tuple[int, bool] = (-1, False)

    @property
    def only_request(self) -> AllocationRequest | None:
        """Return the request of a claim that has one, without alternatives; None if it cannot be allocated."""
        if self.problem or self.error or len(self.requests) != 1 or len(self.requests[0]) != 1:
            return None
        return self.requests[0][0]


Classes = Callable[[str], DeviceClass | None]


class ClaimSpecs:
    """Compiled claims by content; dropped when a class they name changes."""

    def __init__(self, classes: Classes) -> None:
        self._classes = classes
        self.version = 0  # +1 per changed class
        self._known: dict[Hashable, ClaimSpec] = {}
        self._by_class: dict[str, dict[Hashable, None]] = {}
        self._encode = msgspec.json.Encoder(order="deterministic").encode

    def of(self, claim: ResourceClaim) -> ClaimSpec:
        return self.of_spec(claim.spec, self.key(claim.spec), f"{claim.metadata.namespace}/{claim.metadata.name}")

    def key(self, spec: ResourceClaimSpec) -> bytes:
        """Return a value that is equal for claims with equal requests."""
        return self._encode(spec.devices)

    def of_spec(self, spec: ResourceClaimSpec, key: Hashable, name: str) -> ClaimSpec:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._compile(spec, key, name)
        return known

    def class_changed(self, name: str) -> None:
        self.version += 1
        for key in self._by_class.pop(name, {}):
            self._known.pop(key, None)

    def drop_devices(self, devices: Iterable[Device]) -> None:
        """Forget verdicts about removed devices."""
        requests = [request for spec in self._known.values() for options in spec.requests for request in options]
        for device in devices:
            for request in requests:
                request.answers.pop(device, None)
                request.shares.pop(device, None)

    def _compile(self, spec: ResourceClaimSpec, key: Hashable, name: str) -> ClaimSpec:
        requests: list[tuple[AllocationRequest, ...]] = []
        problem = error = ""
        for each in spec.devices.requests:
            parts: list[tuple[str, ExactDeviceRequest | DeviceSubRequest]] = []
            if each.exactly is not None:
                parts.append((each.name, each.exactly))
            parts += [(f"{each.name}/{sub.name}", sub) for sub in each.first_available]
            if not parts:
                problem = problem or f"request {each.name}: unsupported request type"
                continue
            alternatives = []
            for full, part in parts:
                self._by_class.setdefault(part.device_class_name, {})[key] = None
                found = self._classes(part.device_class_name)
                if found is None:
                    problem = problem or f"request {full}: device class {part.device_class_name} does not exist"
                    continue
                try:
                    alternatives.append(_request(full, each.name, part, found, name))
                except (BadClaim, BadQuantity) as wrong:
                    error = error or f"claim {name}, request {full}: {wrong}"
            requests.append(tuple(alternatives))
        constraints = []
        for number, limit in enumerate(spec.devices.constraints):
            attribute = limit.match_attribute or limit.distinct_attribute
            if not attribute:
                error = error or f"claim {name}, constraint #{number}: empty constraint (unsupported constraint type?)"
                continue
            constraints.append(AttributeConstraint(attribute, limit.match_attribute is None, frozenset(limit.requests)))
        return ClaimSpec(tuple(requests), tuple(constraints), tuple(spec.devices.config), problem, error)


def _request(
    full: str, main: str, part: ExactDeviceRequest | DeviceSubRequest, found: DeviceClass, claim: str
) -> AllocationRequest:
    selectors: list[tuple[str, str]] = []
    for source, where in ((found.spec.selectors, f"class {found.metadata.name}"), (part.selectors, THE_CLAIM)):
        for number, selector in enumerate(source):
            if selector.cel is None:
                raise BadClaim(f"selector #{number}: CEL expression empty (unsupported selector type?)")
            selectors.append((selector.cel.expression, f"{where}: selector #{number}"))
    mode = part.allocation_mode or "ExactCount"
    if mode not in ("ExactCount", ALL):
        raise BadClaim(f"unsupported count mode {mode}")
    return AllocationRequest(
        name=full,
        main=main,
        class_name=found.metadata.name,
        selectors=tuple(selectors),
        everything=mode == ALL,
        count=part.count or 1,
        admin=isinstance(part, ExactDeviceRequest) and part.admin_access,
        tolerations=tuple(part.tolerations),
        capacity=_amounts(part.capacity.requests if part.capacity is not None else {}),
        config=tuple(found.spec.config),
    )


def _amounts(asked: Mapping[str, str | int | float]) -> dict[str, int]:
    return {name: nanos(text) for name, text in asked.items()}


def _published(name: str, device: Device) -> str:
    """Return the published name of a capacity, which may omit the driver's domain."""
    if name in device.capacity:
        return name
    return next((known for known in device.capacity if qualified(known, device.driver) == name), name)
