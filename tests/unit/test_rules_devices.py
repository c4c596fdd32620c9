"""Claims and slices: what names no node, no pool and no device is refused."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.model.gates import Gates
from support.rules import rules_for

Json = dict[str, Any]

FIELD = {"key": "metadata.name", "operator": "Foo", "values": ["a"]}
UNREADABLE: Json = {"nodeSelectorTerms": [{"matchFields": [FIELD]}]}
OPERATOR = "nodeSelector.nodeSelectorTerms[0].matchFields[0].operator"
SAID = {"status": "True", "reason": "Seen", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
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


def capacity(value: str, **policy: Any) -> Json:
    return {"allowMultipleAllocations": True, "capacity": {"m": {"value": value, "requestPolicy": policy}}}


POLICY = "capacity[m].requestPolicy"


@pytest.mark.parametrize(
    ("device", "path"),
    [
        (capacity("10", default="4", validRange={"min": "2", "max": "8", "step": "2"}), ""),
        (capacity("10", default="2500m", validRange={"min": "500m", "step": "500m"}), ""),
        (capacity("10", default="4", validValues=["2", "4", "8"]), ""),
        ({**capacity("10", default="4"), "allowMultipleAllocations": False}, POLICY),
        (capacity("10", default="1", validRange={"min": "2"}), f"{POLICY}.validRange.default"),
        (capacity("10", default="3", validRange={"min": "2", "step": "2"}), f"{POLICY}.validRange.step"),
        (capacity("10", default="2", validRange={"min": "2", "max": "5", "step": "2"}), f"{POLICY}.validRange.step"),
        (capacity("10", default="2", validRange={"min": "2", "max": "20"}), f"{POLICY}.validRange.max"),
        (capacity("10", default="2", validRange={"max": "8"}), f"{POLICY}.validRange.min"),
        (capacity("10", default="2", validRange={"min": "2", "step": "0"}), f"{POLICY}.validRange.step"),
        (capacity("10", default="2", validRange={"min": "x"}), f"{POLICY}.validRange.min"),
        (capacity("10", validRange={"min": "2"}), f"{POLICY}.default"),
        (capacity("10", validValues=["2"]), f"{POLICY}.default"),
        (capacity("10", default="3", validValues=["2", "4"]), f"{POLICY}.validValues"),
        (capacity("10", default="2", validValues=["4", "2"]), f"{POLICY}.validValues[1]"),
        (capacity("10", default="2", validValues=["2", "2"]), f"{POLICY}.validValues[1]"),
        (capacity("10", default="2", validValues=["2", "20"]), f"{POLICY}.validValues[1]"),
        (capacity("10", default="2", validValues=["2"], validRange={"min": "2"}), POLICY),
        ({"attributes": {"9a": {"int": 1}}}, "attributes"),
        ({"attributes": {"/a": {"int": 1}}}, "attributes"),
        ({"attributes": {"a" * 33: {"int": 1}}}, "attributes"),
        ({"attributes": {"a": {"version": "1.0"}}}, "attributes[a].version"),
        ({"attributes": {"a": {"version": "1.0.0-rc.1+build"}}}, ""),
        ({"bindingConditions": ["a"]}, "bindingFailureConditions"),
        ({"bindingFailureConditions": ["a"]}, "bindingConditions"),
        ({"bindingConditions": ["a", "a"], "bindingFailureConditions": ["b"]}, "bindingConditions[1]"),
        ({"bindingConditions": ["a"], "bindingFailureConditions": ["a"]}, "bindingFailureConditions[0]"),
        ({"consumesCounters": [{"counterSet": "g", "counters": {"m": {"value": "1"}}}] * 2},
         "consumesCounters[1].counterSet"),
        ({"consumesCounters": [{"counterSet": "g"}]}, "consumesCounters[0].counters"),
        ({"taints": [{"key": "a", "value": "-", "effect": "None"}]}, "taints[0].value"),
    ],
)  # fmt: skip
def test_a_device_that_contradicts_itself_is_refused(device: Json, path: str) -> None:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d.example.com", "pool": pool, "nodeName": "n", "devices": [{"name": "d", **device}]}
    validate = rules_for("resourceslices.resource.k8s.io", Gates()).validate_create
    assert validate is not None
    errors = [str(error).split(": ")[0] for error in validate({"metadata": {"name": "s"}, "spec": spec})]
    assert errors == ([f"spec.devices[0].{path}"] if path else [])


def test_fields_of_gates_that_are_off_are_dropped() -> None:
    device = {"name": "d", "attributes": {"a": {"ints": [1]}}, "nodeAllocatableResources": {"cpu": {}}}
    obj: Json = {"spec": {"devices": [device], "partitionTypeAttribute": "a"}}
    prepare = rules_for("resourceslices.resource.k8s.io", Gates()).prepare_create
    assert prepare is not None
    prepare(obj)
    assert obj == {"spec": {"devices": [{"name": "d", "attributes": {"a": {}}}]}}
    request = {"name": "r", "exactly": {"deviceClassName": "gpu", "derivedAttributes": [{"name": "a"}]}}
    claim: Json = {"metadata": {}, "spec": {"devices": {"requests": [request]}}}
    prepare = rules_for("resourceclaims.resource.k8s.io", Gates()).prepare_create
    assert prepare is not None
    prepare(claim)
    assert claim["spec"]["devices"]["requests"][0]["exactly"] == {"deviceClassName": "gpu"}


@pytest.mark.parametrize(
    ("used", "path"),
    [
        ([{"name": "a"}, {"name": "b", "request": "x"}, {"name": "b", "request": "y"}], ""),
        ([{"name": "a"}, {"name": "a"}], "[1]"),
        ([{"name": "a"}, {"name": "a", "request": "x"}], "[1]"),
        ([{"name": "a", "request": "x"}, {"name": "a"}], "[1]"),
        ([{"name": "a", "request": "X"}], "[0].request"),
        ([{"name": "none"}], "[0]"),
    ],
)
def test_a_container_uses_every_claim_or_request_once(used: list[Json], path: str) -> None:
    container = {"name": "c", "image": "i", "resources": {"claims": used}}
    claims = [{"name": name, "resourceClaimName": name} for name in "ab"]
    spec = {"containers": [container], "resourceClaims": claims}
    pod: Json = {"metadata": {"name": "p", "namespace": "n"}, "spec": spec}
    rules = rules_for("pods", Gates())
    assert rules.validate_create is not None and rules.default is not None
    rules.default(pod)
    errors = [str(error).split(": ")[0] for error in rules.validate_create(pod)]
    assert errors == ([f"spec.containers[0].resources.claims{path}"] if path else [])


ALLOCATED = {"driver": "d.example.com", "pool": "p", "device": "d0"}


@pytest.mark.parametrize(
    ("devices", "paths"),
    [
        ([ALLOCATED], []),
        ([{**ALLOCATED, "device": "d1"}], ["[0]"]),
        ([ALLOCATED, ALLOCATED], ["[1]"]),
        ([{**ALLOCATED, "driver": "D"}], ["[0].driver", "[0]"]),
        ([{**ALLOCATED, "conditions": [{"type": f"c{n}", **SAID} for n in range(9)]}], ["[0].conditions"]),
        ([{**ALLOCATED, "data": "text"}], ["[0].data"]),
    ],
)
def test_a_driver_reports_only_about_devices_of_the_claim(devices: list[Json], paths: list[str]) -> None:
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu"}}]}}
    allocation = {"devices": {"results": [{"request": "gpu", **ALLOCATED}]}}
    old: Json = {"metadata": {"name": "c", "uid": "u"}, "spec": spec, "status": {"allocation": allocation}}
    validate = rules_for("resourceclaims.resource.k8s.io", Gates()).validate_status
    assert validate is not None
    errors = validate({**old, "status": {"allocation": allocation, "devices": devices}}, old)
    assert [str(error).split(": ")[0] for error in errors] == [f"status.devices{path}" for path in paths]


PLACES = "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required"


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({}, f"spec: Required value: {PLACES}"),
        (
            {"nodeName": "n", "allNodes": True},
            f'spec: Invalid value: "{{`nodeName`, `allNodes`}}": {PLACES}, but multiple fields are set',
        ),
        (
            {"nodeName": "n", "devices": [{"name": "g", "allNodes": True}]},
            "spec.devices[0]: Invalid value: null: `nodeName`, `nodeSelector` and `allNodes` can only be set"
            " if `perDeviceNodeSelection` is set to true in the ResourceSlice spec",
        ),
        (
            {"nodeName": "n", "devices": [{"name": "g", "attributes": {"a": {"int": 1, "string": "x"}}}]},
            'spec.devices[0].attributes[a]: Invalid value: "{int, string}": must specify exactly one of: `int`, `bool`,'
            " `string`, `version`, `ints`, `bools`, `strings`, `versions`",
        ),
    ],
)
def test_a_refused_slice_gets_the_words_of_kube_apiserver(more: Json, problem: str) -> None:
    pool = {"name": "p", "generation": 1, "resourceSliceCount": 1}
    validate = rules_for("resourceslices.resource.k8s.io", Gates()).validate_create
    assert validate is not None
    made = {"metadata": {"name": "s"}, "spec": {"driver": "d.example.com", "pool": pool, **more}}
    assert [str(error) for error in validate(made)] == [problem]


@pytest.mark.parametrize(
    ("limit", "problems"),
    [
        ({}, ["Required value: one of `matchAttribute` and `distinctAttribute` is required"]),
        ({"matchAttribute": "d.example.com/x", "distinctAttribute": "d.example.com/y"}, []),
    ],
)
def test_a_constraint_may_name_both_attributes_but_not_none(limit: Json, problems: list[str]) -> None:
    request = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "count": 1, "allocationMode": "ExactCount"}}
    spec = {"devices": {"requests": [request], "constraints": [limit]}}
    validate = rules_for("resourceclaims.resource.k8s.io", Gates()).validate_create
    assert validate is not None
    made = {"metadata": {"name": "c", "namespace": "default"}, "spec": spec}
    at = "spec.devices.constraints[0]: "
    assert [str(error) for error in validate(made)] == [at + problem for problem in problems]
