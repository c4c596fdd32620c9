"""What is written to a ResourceClaim, on a server that answers as kube-apiserver does."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from phalanx.base.client import Call, Client, WatchEvent
from phalanx.base.clock import SystemClock
from phalanx.base.errors import ApiProblem, Invalid
from phalanx.engine import decisions as d
from phalanx.kube.claims import ClaimWriter
from phalanx.model.objects.devices import (
    CLAIM_FINALIZER,
    AllocatedDevice,
    AllocationResult,
    ConsumerReference,
    DeviceAllocation,
)

Json = dict[str, Any]


class Server(Client):
    """One claim. `fixed`: every write of the object itself is rejected."""

    def __init__(self, spec: Json, *, fixed: bool) -> None:
        self.claim: Json = {"metadata": {"name": "c", "namespace": "default", "uid": "u"}, "spec": spec}
        self._fixed = fixed

    async def call(self, call: Call) -> bytes:
        if call.verb == "update":
            body = msgspec.json.decode(call.encoded())
            if call.subresource == "status":
                self.claim = {**self.claim, "status": body["status"]}
            elif self._fixed:
                raise Invalid('ResourceClaim "c" is invalid: spec: Invalid value: null: field is immutable')
            else:
                self.claim = {**self.claim, "metadata": body["metadata"]}
        return msgspec.json.encode(self.claim)

    def events(self, call: Call) -> AsyncIterator[WatchEvent]:
        raise NotImplementedError


def reserve(server: Server) -> None:
    device = AllocatedDevice(request="r", driver="gpu.example.com", pool="p", device="g0")
    consumer = ConsumerReference(resource="pods", name="p", uid="pod")
    decision = d.ReserveClaim(1, "default", "c", "u", AllocationResult(DeviceAllocation([device])), consumer)
    asyncio.run(ClaimWriter(server, SystemClock(), random.Random(1)).perform(decision))


def test_a_claim_is_protected_and_then_allocated() -> None:
    server = Server({"devices": {}}, fixed=False)
    reserve(server)
    assert server.claim["metadata"]["finalizers"] == [CLAIM_FINALIZER]
    assert [each["device"] for each in server.claim["status"]["allocation"]["devices"]["results"]] == ["g0"]
    assert [each["uid"] for each in server.claim["status"]["reservedFor"]] == ["pod"]


def test_a_claim_that_takes_no_finalizer_because_of_its_parameters_is_allocated(
    caplog: pytest.LogCaptureFixture,
) -> None:
    opaque = {"driver": "gpu.example.com", "parameters": {"kind": "Mode"}}
    server = Server({"devices": {"config": [{"opaque": opaque}]}}, fixed=True)
    with caplog.at_level(logging.WARNING):
        reserve(server)
    assert [each["device"] for each in server.claim["status"]["allocation"]["devices"]["results"]] == ["g0"]
    assert "ResourceClaim default/c gets no finalizer" in caplog.text


def test_any_other_rejection_is_reported() -> None:
    with pytest.raises(ApiProblem, match="immutable"):
        reserve(Server({"devices": {}}, fixed=True))
