"""Workload, PodGroup and CompositePodGroup are accepted and refused as Kubernetes 1.37 and KEP-6012 say, literally."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from phalanx.model.gates import Gates
from support.rules import rules_for

ON = Gates()
POLICY = {"schedulingPolicy": {"basic": {}}}
REF = {"workloadRef": {"workloadName": "w", "templateName": "t"}}
KEYS = {
    "Workload": "workloads.scheduling.k8s.io",
    "PodGroup": "podgroups.scheduling.k8s.io",
    "CompositePodGroup": "compositepodgroups.scheduling.k8s.io",
}


def create(kind: str, spec: dict[str, Any], gates: Gates = ON, **more: Any) -> tuple[dict[str, Any], list[str]]:
    rules = rules_for(KEYS[kind], gates)
    obj: dict[str, Any] = {"metadata": {"name": "a", "namespace": "ns"}, "spec": copy.deepcopy(spec), **more}
    if rules.default:
        rules.default(obj)
    assert rules.prepare_create and rules.validate_create
    rules.prepare_create(obj)
    return obj, [str(error) for error in rules.validate_create(obj)]


def update(kind: str, old: dict[str, Any], new: dict[str, Any], gates: Gates = ON) -> list[str]:
    rules = rules_for(KEYS[kind], gates)
    before = {"metadata": {"name": "a", "namespace": "ns"}, "spec": copy.deepcopy(old)}
    after = {"metadata": {"name": "a", "namespace": "ns"}, "spec": copy.deepcopy(new)}
    for obj in (before, after):
        if rules.default:
            rules.default(obj)
    assert rules.prepare_update and rules.validate_update
    rules.prepare_update(after, before)
    return [str(error) for error in rules.validate_update(after, before)]


def pgt(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, **POLICY, **more}


def cpgt(name: str, *leaves: dict[str, Any], inner: tuple[dict[str, Any], ...] = (), **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, **POLICY, **more}
    if leaves:
        found["podGroupTemplates"] = list(leaves)
    if inner:
        found["compositePodGroupTemplates"] = list(inner)
    return found


def tree(*roots: dict[str, Any]) -> dict[str, Any]:
    return {"compositePodGroupTemplates": list(roots)}


IMMUTABLE = "Invalid value: null: field is immutable"


@pytest.mark.parametrize(
    ("spec", "errors"),
    [
        ({**POLICY}, []),
        ({}, ['spec.schedulingPolicy: Invalid value: "": must specify one of: `basic`, `gang`']),
        (
            {"schedulingPolicy": {"basic": {}, "gang": {"minCount": 1}}},
            ['spec.schedulingPolicy: Invalid value: "{basic, gang}": must specify exactly one of: `basic`, `gang`'],
        ),
        ({"schedulingPolicy": {"gang": {}}}, ["spec.schedulingPolicy.gang.minCount: Required value"]),
        (
            {"schedulingPolicy": {"gang": {"minCount": -1}}},
            ["spec.schedulingPolicy.gang.minCount: Invalid value: -1: must be greater than or equal to 1"],
        ),
        (
            {**POLICY, "parentCompositePodGroupName": "p"},
            ["spec.workloadRef: Required value: must be set when parentCompositePodGroupName is set"],
        ),
        (
            {**POLICY, "schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}},
            ["spec.schedulingConstraints.topology: Too many: 2: must have at most 1 item"],
        ),
        (
            {**POLICY, "schedulingConstraints": {"topology": [{"key": ""}]}},
            ["spec.schedulingConstraints.topology[0].key: Required value"],
        ),
        ({**POLICY, "schedulingConstraints": {}}, []),
        (
            {**POLICY, "disruptionMode": {}},
            ['spec.disruptionMode: Invalid value: "": must specify one of: `single`, `all`'],
        ),
        (
            {**POLICY, "priority": 1000000001},
            ["spec.priority: Invalid value: 1000000001: must be less than or equal to 1000000000"],
        ),
        (
            {**POLICY, "workloadRef": {"workloadName": "w", "templateName": "a.b"}},
            ['spec.workloadRef.templateName: Invalid value: "a.b": must not contain dots'],
        ),
        ({**POLICY, "workloadRef": {"workloadName": "w"}}, ["spec.workloadRef.templateName: Required value"]),
    ],
)
def test_pod_group_create(spec: dict[str, Any], errors: list[str]) -> None:
    assert create("PodGroup", spec)[1] == errors


def test_groups_are_defaulted_and_start_without_status() -> None:
    for kind in ("PodGroup", "CompositePodGroup"):
        obj, errors = create(kind, {**POLICY, **REF}, status={"conditions": [{"type": "X"}]})
        assert errors == []
        assert obj["spec"]["disruptionMode"] == {"single": {}}
        assert "preemptionPolicy" not in obj["spec"]
        assert not obj["status"]
    obj, errors = create("PodGroup", POLICY, Gates({"PodGroupPreemptionPolicy": True}))
    assert (obj["spec"]["preemptionPolicy"], errors) == ("PreemptLowerPriority", [])


def test_preemption_policy_is_an_enum() -> None:
    spec = {**POLICY, "preemptionPolicy": "X"}
    assert create("PodGroup", spec, Gates({"PodGroupPreemptionPolicy": True}))[1] == [
        'spec.preemptionPolicy: Unsupported value: "X": supported values: "Never", "PreemptLowerPriority"'
    ]


def test_claims_of_a_group() -> None:
    gates = Gates({"DRAWorkloadResourceClaims": True})
    claims = [{"name": "c", "resourceClaimName": "x"}, {"name": "c"}]
    assert create("PodGroup", {**POLICY, "resourceClaims": claims}, gates)[1] == [
        'spec.resourceClaims[1]: Duplicate value: {"name":"c"}',
        'spec.resourceClaims[1]: Invalid value: "": must specify one of: '
        "`resourceClaimName`, `resourceClaimTemplateName`",
    ]
    assert create("PodGroup", {**POLICY, "resourceClaims": claims * 3}, gates)[1] == [
        "spec.resourceClaims: Too many: 6: must have at most 4 items"
    ]


def test_gated_fields_leave_silently_unless_already_in_use() -> None:
    off = Gates(
        {"TopologyAwareWorkloadScheduling": False, "CompositePodGroup": False, "DRAWorkloadResourceClaims": False}
    )
    spec = {
        **POLICY,
        "schedulingConstraints": {"topology": [{"key": "a"}]},
        "parentCompositePodGroupName": "p",
        "preemptionPolicy": "Never",
        "resourceClaims": [{"name": "c"}],
    }
    obj, errors = create("PodGroup", spec, off)
    assert errors == []
    assert set(obj["spec"]) == {"schedulingPolicy", "disruptionMode"}
    kept = {**POLICY, **REF, "schedulingConstraints": {"topology": [{"key": "a"}]}}
    assert update("PodGroup", kept, kept, off) == []
    changed = {**kept, "schedulingConstraints": {"topology": [{"key": "b"}]}}
    assert update("PodGroup", kept, changed, off) == ["spec.schedulingConstraints: Forbidden"]
    assert create("Workload", tree(cpgt("c", pgt("x"))), off)[1] == [
        'spec: Invalid value: "": must specify one of: `podGroupTemplates`, `compositePodGroupTemplates`'
    ]


GANG = {"schedulingPolicy": {"gang": {"minCount": 2}}}


@pytest.mark.parametrize(
    ("old", "new", "errors"),
    [
        (GANG, {"schedulingPolicy": {"gang": {"minCount": 5}}}, []),
        (
            GANG,
            {"schedulingPolicy": {"gang": {"minCount": 0}}},
            ["spec.schedulingPolicy.gang.minCount: Required value"],
        ),
        (
            POLICY,
            GANG,
            [
                f"spec.schedulingPolicy.basic: {IMMUTABLE}",
                "spec.schedulingPolicy.gang: Invalid value: null: field cannot be set once created",
            ],
        ),
        (
            GANG,
            POLICY,
            [
                f"spec.schedulingPolicy.basic: {IMMUTABLE}",
                "spec.schedulingPolicy.gang: Invalid value: null: field cannot be cleared once set",
            ],
        ),
        (POLICY, {**POLICY, "disruptionMode": {"all": {}}}, [f"spec.disruptionMode: {IMMUTABLE}"]),
        (POLICY, {**POLICY, "priority": 5}, [f"spec.priority: {IMMUTABLE}"]),
        (POLICY, {**POLICY, "schedulingConstraints": {}}, [f"spec.schedulingConstraints: {IMMUTABLE}"]),
        (
            {**POLICY, **REF},
            {**POLICY, "workloadRef": {"workloadName": "w", "templateName": "u"}},
            [f"spec.workloadRef: {IMMUTABLE}"],
        ),
        (
            POLICY,
            {**POLICY, "parentCompositePodGroupName": "p"},
            [f"spec.parentCompositePodGroupName: {IMMUTABLE}"],
        ),
    ],
)
def test_pod_group_update(old: dict[str, Any], new: dict[str, Any], errors: list[str]) -> None:
    assert update("PodGroup", old, new) == errors


def test_composite_policy_is_frozen_unless_its_gate_is_on() -> None:
    old = {**REF, "schedulingPolicy": {"gang": {"minGroupCount": 2}}}
    new = {**REF, "schedulingPolicy": {"gang": {"minGroupCount": 1}}}
    closed, open_gate = (Gates({"MutableMinGroupCount": on}) for on in (False, True))
    assert update("CompositePodGroup", old, new, closed) == [f"spec.schedulingPolicy: {IMMUTABLE}"]
    assert update("CompositePodGroup", old, new, open_gate) == []
    assert update("CompositePodGroup", old, {**REF, **POLICY}, open_gate) != []
    assert create("CompositePodGroup", POLICY)[1] == ["spec.workloadRef: Required value"]


@pytest.mark.parametrize(
    ("spec", "errors"),
    [
        ({}, ['spec: Invalid value: "": must specify one of: `podGroupTemplates`, `compositePodGroupTemplates`']),
        (
            {"podGroupTemplates": [pgt("x")], **tree(cpgt("c", pgt("y")))},
            [
                'spec: Invalid value: "{podGroupTemplates, compositePodGroupTemplates}": '
                "must specify exactly one of: `podGroupTemplates`, `compositePodGroupTemplates`"
            ],
        ),
        (
            {"podGroupTemplates": [pgt(f"t{n}") for n in range(9)]},
            ["spec.podGroupTemplates: Too many: 9: must have at most 8 items"],
        ),
        (
            {"podGroupTemplates": [pgt("t"), pgt("t")]},
            ['spec.podGroupTemplates[1]: Duplicate value: {"name":"t","schedulingPolicy":{"basic":{}}}'],
        ),
        (
            tree(cpgt("c")),
            [
                'spec.compositePodGroupTemplates[0]: Invalid value: "c": '
                "must have at least one child PodGroupTemplate or CompositePodGroupTemplate"
            ],
        ),
        (
            tree(cpgt("main", pgt("main"))),
            ['spec.compositePodGroupTemplates[0].podGroupTemplates[0].name: Duplicate value: "main"'],
        ),
        (
            {"podGroupTemplates": [pgt("x", priority=1), pgt("y")]},
            ["spec: Invalid value: null: detected multiple priority configurations"],
        ),
        (
            tree(cpgt("c", pgt("x", priorityClassName="high"))),
            [
                "spec: Invalid value: null: all priority and priorityClassName values must be identical, "
                "detected multiple values"
            ],
        ),
        (
            {
                "podGroupTemplates": [pgt("x", disruptionMode={"all": {}})],
                "controllerRef": {"kind": "Job", "name": "j"},
            },
            [],
        ),
        (
            {"podGroupTemplates": [pgt("x")], "controllerRef": {"kind": "a/b"}},
            [
                "spec.controllerRef.kind: Invalid value: \"a/b\": may not contain '/'",
                "spec.controllerRef.name: Required value",
            ],
        ),
    ],
)
def test_workload_create(spec: dict[str, Any], errors: list[str]) -> None:
    assert create("Workload", spec)[1] == errors


def test_four_levels_are_the_limit() -> None:
    three = cpgt("l1", inner=(cpgt("l2", inner=(cpgt("l3", pgt("l4")),)),))
    assert create("Workload", tree(three))[1] == []
    four = cpgt("l1", inner=(cpgt("l2", inner=(cpgt("l3", inner=(cpgt("l4", pgt("l5")),)),)),))
    (error,) = create("Workload", tree(four))[1]
    assert error.startswith("spec.compositePodGroupTemplates[0]: Invalid value: [{")
    assert error.endswith("}]: maximum template hierarchy depth is 4")


def test_what_is_disrupted_as_one_holds_only_what_is_disrupted_as_one() -> None:
    whole, single = {"disruptionMode": {"all": {}}}, {"disruptionMode": {"single": {}}}
    assert create("Workload", tree(cpgt("c", pgt("x", **whole), **whole)))[1] == []
    assert create("Workload", tree(cpgt("c", pgt("x", **whole), **single)))[1] == []
    assert create("Workload", tree(cpgt("c", pgt("x", **single), **whole)))[1] == [
        'spec.compositePodGroupTemplates[0].podGroupTemplates[0].disruptionMode: Invalid value: "single": '
        'must be `all`, because the parent template "c" has disruptionMode `all`'
    ]
    nested = tree(cpgt("c", inner=(cpgt("d", pgt("x", **whole), **single),), **whole))
    (error,) = create("Workload", nested)[1]
    assert error.startswith("spec.compositePodGroupTemplates[0].compositePodGroupTemplates[0].disruptionMode: ")


def test_workload_templates_change_only_inside() -> None:
    one, two = pgt("x", **GANG), pgt("y")
    old = {"podGroupTemplates": [one, two]}
    assert update("Workload", old, {"podGroupTemplates": [two, one]}) == []
    more = {"podGroupTemplates": [pgt("x", schedulingPolicy={"gang": {"minCount": 4}}), two]}
    assert update("Workload", old, more) == []
    assert update("Workload", old, {"podGroupTemplates": [one]}) == [
        "spec.podGroupTemplates: Forbidden: item may not be removed"
    ]
    assert update("Workload", old, {"podGroupTemplates": [one, pgt("z"), two]}) == [
        "spec.podGroupTemplates[1]: Forbidden: item may not be added"
    ]
    assert update("Workload", old, {**old, "controllerRef": {"kind": "Job", "name": "j"}}) == [
        f"spec.controllerRef: {IMMUTABLE}"
    ]
    frozen = {"podGroupTemplates": [pgt("x", **GANG, schedulingConstraints={}), two]}
    assert update("Workload", old, frozen) == [f"spec.podGroupTemplates[0].schedulingConstraints: {IMMUTABLE}"]


def test_composite_template_counts_may_change() -> None:
    old = tree(cpgt("c", pgt("x"), schedulingPolicy={"gang": {"minGroupCount": 1}}))
    new = tree(cpgt("c", pgt("x"), schedulingPolicy={"gang": {"minGroupCount": 2}}))
    assert update("Workload", old, new) == []


def test_status_is_written_through_its_own_door() -> None:
    rules = rules_for(KEYS["PodGroup"], ON)
    assert rules.prepare_update and rules.prepare_status and rules.validate_status
    condition = {
        "type": "X",
        "status": "True",
        "reason": "R",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    old = {"metadata": {"name": "a", "labels": {"l": "1"}}, "spec": GANG, "status": {"conditions": [condition]}}
    new: dict[str, Any] = {"metadata": {"name": "a", "labels": {"l": "2"}}, "spec": POLICY, "status": {}}
    rules.prepare_update(new, old)
    assert new["status"] == old["status"]
    bad = {**condition, "status": "Maybe", "reason": "not a reason", "type": ""}
    new = {"metadata": {"name": "a", "labels": {"l": "2"}}, "spec": POLICY, "status": {"conditions": [bad]}}
    rules.prepare_status(new, old)
    assert new["spec"] == GANG
    errors = [str(error) for error in rules.validate_status(new, old)]
    assert errors[:2] == [
        "status.conditions[0].type: Required value: is required",
        'status.conditions[0].status: Unsupported value: "Maybe": supported values: "False", "True", "Unknown"',
    ]
    assert errors[2].startswith('status.conditions[0].reason: Invalid value: "not a reason": a condition reason must')


def test_claim_statuses_name_claims_of_the_spec() -> None:
    rules = rules_for(KEYS["PodGroup"], Gates({"DRAWorkloadResourceClaims": True}))
    assert rules.validate_status
    old = {"metadata": {"name": "a"}, "spec": POLICY}
    new = {**old, "status": {"resourceClaimStatuses": [{"name": "x"}]}}
    assert [str(error) for error in rules.validate_status(new, old)] == [
        'status.resourceClaimStatuses[0].name: Invalid value: "x": '
        "must match the name of an entry in `spec.resourceClaims`"
    ]


def test_errors_about_metadata_come_first() -> None:
    rules = rules_for(KEYS["PodGroup"], ON)
    assert rules.validate_create
    errors = rules.validate_create({"metadata": {"name": "Bad_Name"}, "spec": {"disruptionMode": {"all": {}}}})
    assert [error.path for error in errors] == ["metadata.name", "spec.schedulingPolicy"]
    assert errors[0].type == "FieldValueInvalid"
