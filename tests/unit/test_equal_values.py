"""Cached results for equal values are those of a new computation."""

from __future__ import annotations

import copy
from typing import Any

from phalanx.local.api.managed_fields import FieldTracker
from phalanx.model import builtin, memo
from phalanx.model.gates import Gates
from phalanx.model.memo import Memo
from phalanx.model.rules import podspec

SPEC: dict[str, Any] = {
    "restartPolicy": "Always",
    "containers": [
        {
            "name": "main",
            "image": "registry.example.com/app:1",
            "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
            "ports": [{"containerPort": 80, "protocol": "TCP"}],
            "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "1"}},
        }
    ],
    "volumes": [{"name": "data", "emptyDir": {}}],
}


def test_alike_values_are_asked_about_once_and_others_each() -> None:
    asked = []

    def ask(value: Any) -> int:
        asked.append(value)
        return len(asked)

    known = Memo(ask)
    assert [known({"a": 1}), known({"a": 1}), known({"a": 2}), known({"a": 1})] == [1, 1, 2, 1]
    assert asked == [{"a": 1}, {"a": 2}]


def test_little_is_kept() -> None:
    known: Memo[int] = Memo(lambda value: 0)
    for number in range(3 * memo.MOST):
        known(number)
    assert len(known) == memo.MOST
    known("x" * memo.LARGEST)
    assert len(known) == memo.MOST


def test_a_spec_that_was_right_and_one_that_differs_in_one_place() -> None:
    assert podspec.errors_of(SPEC) == []
    assert podspec.errors_of(SPEC) == []
    for wrong in ("", "Sometimes"):
        spec = copy.deepcopy(SPEC)
        spec["restartPolicy"] = wrong
        for path in ("spec", "spec.template.spec"):
            found = podspec.errors_of(spec, path)
            assert [error.path for error in found] == [f"{path}.restartPolicy"]


def test_owned_fields_of_a_pod_are_those_of_its_own_spec() -> None:
    kind = builtin.registry(Gates()).by_kind("", "v1", "Pod")
    assert kind is not None
    tracker = FieldTracker()

    def owned(spec: dict[str, Any]) -> dict[str, Any]:
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "labels": {"x": "y"}}, "spec": spec}
        fresh = FieldTracker().content(kind, copy.deepcopy(pod))
        assert tracker.content(kind, pod) == fresh
        assert list(fresh) == ["f:metadata", "f:spec"]
        return fresh["f:spec"]

    first = owned(SPEC)
    assert owned(copy.deepcopy(SPEC)) == first
    more = copy.deepcopy(SPEC)
    more["containers"][0]["env"].append({"name": "C", "value": "3"})
    assert 'k:{"name":"C"}' in owned(more)["f:containers"]['k:{"name":"main"}']["f:env"]
    assert owned(SPEC) == first
    assert 'k:{"name":"C"}' not in first["f:containers"]['k:{"name":"main"}']["f:env"]
