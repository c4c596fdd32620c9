"""One stored Workload, two versions: nothing is lost by looking at it or writing it through KEP-4671's v1alpha1."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from phalanx.model.gates import Gates
from phalanx.model.rules.workload_v1alpha1 import ANNOTATION, from_storage, to_storage
from support.rules import rules_for

RULES = rules_for("workloads.scheduling.k8s.io", Gates())

names = st.sampled_from(["a", "b", "prefill", "decode", "worker-0", "x1"])
policy = st.one_of(
    st.just({"basic": {}}), st.integers(1, 100).map(lambda count: {"gang": {"minCount": count}}), st.just({})
)
extras = st.fixed_dictionaries(
    {},
    optional={
        "schedulingConstraints": st.just({"topology": [{"key": "rack"}]}),
        "disruptionMode": st.sampled_from([{"all": {}}, {"single": {}}]),
        "priorityClassName": names,
        "priority": st.integers(-5, 5),
        "resourceClaims": st.just([{"name": "c", "resourceClaimName": "x"}]),
    },
)
leaf = st.builds(lambda name, how, more: {"name": name, "schedulingPolicy": how, **more}, names, policy, extras)
leaves = st.lists(leaf, min_size=1, max_size=4)
composite = st.recursive(
    st.builds(
        lambda name, inner: {"name": name, "schedulingPolicy": {"basic": {}}, "podGroupTemplates": inner}, names, leaves
    ),
    lambda inner: st.builds(
        lambda name, found: {"name": name, "schedulingPolicy": {"basic": {}}, "compositePodGroupTemplates": found},
        names,
        st.lists(inner, min_size=1, max_size=2),
    ),
    max_leaves=4,
)
reference = st.fixed_dictionaries({"kind": names, "name": names})
spec = st.one_of(
    st.fixed_dictionaries({"podGroupTemplates": leaves}, optional={"controllerRef": reference}),
    st.fixed_dictionaries({"compositePodGroupTemplates": st.lists(composite, min_size=1, max_size=2)}),
)
annotations = st.dictionaries(st.one_of(names, st.just(ANNOTATION)), st.text(max_size=5), min_size=1, max_size=2)
meta = st.fixed_dictionaries({"name": names}, optional={"annotations": annotations})
stored = st.builds(
    lambda m, s: {"apiVersion": "scheduling.k8s.io/v1beta1", "kind": "Workload", "metadata": m, "spec": s}, meta, spec
)
alpha_group = st.builds(lambda name, how: {"name": name, "policy": how}, names, policy)
alpha = st.builds(
    lambda name, groups: {
        "apiVersion": "scheduling.k8s.io/v1alpha1",
        "kind": "Workload",
        "metadata": {"name": name},
        "spec": {"podGroups": groups},
    },
    names,
    st.lists(alpha_group, max_size=8),
)


@given(stored)
def test_a_stored_object_survives_a_read_and_write_through_v1alpha1(obj: dict[str, Any]) -> None:
    before = copy.deepcopy(obj)
    view = json.loads(json.dumps(from_storage(obj)))
    assert obj == before, "a view must not change what is stored"
    assert view["apiVersion"] == "scheduling.k8s.io/v1alpha1"
    assert "podGroupTemplates" not in view["spec"] and "compositePodGroupTemplates" not in view["spec"]
    assert to_storage(view) == obj


@given(alpha)
def test_a_v1alpha1_object_comes_back_as_it_was(view: dict[str, Any]) -> None:
    kept = json.loads(json.dumps(to_storage(view)))
    assert kept["apiVersion"] == "scheduling.k8s.io/v1beta1"
    assert from_storage(kept) == view


@given(stored)
def test_a_client_that_drops_annotations_loses_nothing(obj: dict[str, Any]) -> None:
    view = from_storage(copy.deepcopy(obj))
    view["metadata"] = {"name": obj["metadata"]["name"], "labels": {"touched": "yes"}}
    new = to_storage(view)
    assert RULES.prepare_update and RULES.validate_update
    RULES.prepare_update(new, obj)
    assert new["spec"] == obj["spec"]
    assert RULES.validate_update(new, obj) == []


def group(name: str, **policy: Any) -> dict[str, Any]:
    return {"name": name, "policy": policy}


def create_errors(spec: dict[str, Any]) -> list[str]:
    obj = to_storage({"apiVersion": "scheduling.k8s.io/v1alpha1", "metadata": {"name": "w"}, "spec": spec})
    assert RULES.prepare_create and RULES.validate_create
    RULES.prepare_create(obj)
    return [str(error) for error in RULES.validate_create(obj)]


def test_v1alpha1_rules_speak_of_v1alpha1_fields() -> None:
    assert create_errors({"podGroups": [group("a", gang={"minCount": 2}), group("b", basic={})]}) == []
    assert create_errors({}) == ["spec.podGroups: Required value: must have at least one item"]
    assert create_errors({"podGroups": [group(f"g{n}", basic={}) for n in range(9)]}) == [
        "spec.podGroups: Too many: 9: must have at most 8 items"
    ]
    assert create_errors({"podGroups": [group("a.b", gang={"minCount": 0}), group("c"), group("c", basic={})]}) == [
        'spec.podGroups[0].name: Invalid value: "a.b": must not contain dots',
        "spec.podGroups[0].policy.gang.minCount: Required value",
        'spec.podGroups[1].policy: Invalid value: "": must specify one of: `basic`, `gang`',
        'spec.podGroups[2].name: Duplicate value: "c"',
    ]


def test_v1alpha1_groups_are_frozen_and_the_controller_is_set_once() -> None:
    assert RULES.prepare_update and RULES.validate_update
    old = dict(to_storage({"metadata": {"name": "w"}, "spec": {"podGroups": [group("a", gang={"minCount": 2})]}}))
    job = {"apiGroup": "batch", "kind": "Job", "name": "j"}

    def change(spec: dict[str, Any], before: dict[str, Any]) -> list[str]:
        new = to_storage({"metadata": {"name": "w"}, "spec": spec})
        assert RULES.prepare_update and RULES.validate_update
        RULES.prepare_update(new, before)
        return [str(error) for error in RULES.validate_update(new, before)]

    (error,) = change({"podGroups": [group("a", gang={"minCount": 3})]}, old)
    assert error.startswith("spec.podGroups: Invalid value: ") and error.endswith(": field is immutable")
    assert change({"podGroups": [group("a", gang={"minCount": 2})], "controllerRef": job}, old) == []
    owned = {**old, "spec": {**old["spec"], "controllerRef": job}}
    (error,) = change({"podGroups": [group("a", gang={"minCount": 2})]}, owned)
    assert error == "spec.controllerRef: Invalid value: null: field is immutable"


def test_groups_made_as_v1alpha1_stay_as_they_are_through_every_version() -> None:
    made = to_storage(
        {
            "apiVersion": "scheduling.k8s.io/v1alpha1",
            "kind": "Workload",
            "metadata": {"name": "w", "namespace": "ns", "uid": "u", "resourceVersion": "1"},
            "spec": {"podGroups": [{"name": "g", "policy": {"gang": {"minCount": 4}}}]},
        }
    )
    RULES.prepare_create(made)
    old = dict(made)
    larger = copy.deepcopy(old)
    larger["spec"]["podGroupTemplates"][0]["schedulingPolicy"]["gang"]["minCount"] = 5
    larger["metadata"].pop("annotations")  # taking the mark off does not help
    RULES.prepare_update(larger, old)
    (error,) = RULES.validate_update(larger, old)
    assert "spec.podGroupTemplates" in str(error) and "immutable" in str(error)
    same = copy.deepcopy(old)
    same["metadata"]["labels"] = {"a": "b"}
    RULES.prepare_update(same, old)
    assert RULES.validate_update(same, old) == []
    for source in (
        {**old, "metadata": {k: v for k, v in old["metadata"].items() if k != "annotations"}},  # made as v1beta1
        _owned(made),
    ):
        changed = copy.deepcopy(source)
        changed["spec"]["podGroupTemplates"][0]["schedulingPolicy"]["gang"]["minCount"] = 5
        RULES.prepare_update(changed, source)
        assert RULES.validate_update(changed, source) == []


def _owned(obj: dict[str, Any]) -> dict[str, Any]:
    """Made by a controller, which follows the size of what it made it for."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": "x", "controller": True}
    view = from_storage({**obj, "metadata": {"name": "w", "namespace": "ns", "uid": "u", "ownerReferences": [owner]}})
    made = to_storage(view)
    RULES.prepare_create(made)
    return dict(made)
