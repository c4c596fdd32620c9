"""Claims and slices: what names no node, no pool and no device is refused."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.model.gates import Gates
from phalanx.model.rules import rules_for

Json = dict[str, Any]

FIELD = {"key": "metadata.name", "operator": "Foo", "values": ["a"]}
UNREADABLE: Json = {"nodeSelectorTerms": [{"matchFields": [FIELD]}]}
OPERATOR = "nodeSelector.nodeSelectorTerms[0].matchFields[0].operator"
PROBLEM = 'Invalid value: "Foo": not a valid selector operator'


def test_nonsense_in_the_allocation_of_a_claim_is_refused() -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu"}}
    old: Json = {"metadata": {"name": "c", "uid": "u"}, "spec": {"devices": {"requests": [request]}}}
    result = {"request": "gpu", "driver": "Bad Driver", "pool": "a//b", "device": "No.Label"}
    status = {"allocation": {"devices": {"results": [result]}, "nodeSelector": UNREADABLE}}
    validate = rules_for("resourceclaims.resource.k8s.io", Gates()).validate_status
    assert validate is not None
    errors = [str(error) for error in validate({**old, "status": status}, old)]
    results = "status.allocation.devices.results[0]"
    fields = [*(f"{results}.{name}" for name in ("driver", "pool", "device")), f"status.allocation.{OPERATOR}"]
    assert [each.split(": ")[0] for each in errors] == fields
    assert errors[-1].endswith(PROBLEM)


@pytest.mark.parametrize(
    ("more", "path"),
    [
        ({"nodeSelector": UNREADABLE}, "spec"),
        ({"perDeviceNodeSelection": True, "devices": [{"name": "d", "nodeSelector": UNREADABLE}]}, "spec.devices[0]"),
    ],
)
def test_node_selectors_of_slices_and_devices_are_read(more: Json, path: str) -> None:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    made = {"metadata": {"name": "s"}, "spec": {"driver": "d.example.com", "pool": pool, **more}}
    validate = rules_for("resourceslices.resource.k8s.io", Gates()).validate_create
    assert validate is not None
    assert [str(error) for error in validate(made)] == [f"{path}.{OPERATOR}: {PROBLEM}"]
