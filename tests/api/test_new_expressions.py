"""Functions that only new servers have: refused in new expressions, so that a cluster can go back one version."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.base.errors import Invalid
from phalanx.cel.admission import AdmissionEnvironment
from phalanx.cel.program import Program
from support.api_world import World
from support.crontabs import DEFINITIONS, definition

POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
CLASSES = "/apis/resource.k8s.io/v1/deviceclasses"
TEXT = "['a'].includes('a')"


def a_policy(**spec: Any) -> dict[str, Any]:
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    return {"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [rule]}, **spec}}


def a_definition() -> dict[str, Any]:
    made = definition()
    schema = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["x-kubernetes-validations"] = [{"rule": TEXT}]
    return made


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (POLICIES, a_policy(validations=[{"expression": TEXT}])),
        (
            POLICIES,
            a_policy(validations=[{"expression": "true"}], matchConditions=[{"name": "c", "expression": TEXT}]),
        ),
        (CLASSES, {"metadata": {"name": "c"}, "spec": {"selectors": [{"cel": {"expression": TEXT}}]}}),
        (DEFINITIONS, a_definition()),
    ],
)
def test_function_that_the_version_before_lacks_is_refused_in_a_new_expression(
    world: World, path: str, body: dict[str, Any]
) -> None:
    with pytest.raises(Invalid) as problem:
        world.create(path, body)
    assert "undeclared reference to 'includes' (in container '')" in str(problem.value)


def test_the_same_function_runs_in_a_stored_expression() -> None:
    assert isinstance(AdmissionEnvironment().compile(TEXT), Program)
