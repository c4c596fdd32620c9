"""Our own conformance cases can be read, say what they expect, and are all on the list that `.ci/conformance` keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import yaml

from phalanx.model.groups.policy import ANY, INDEX, PLACEMENTS, RANK_SOURCES, RESCHEDULING
from phalanx.model.objects.policy import WorkloadPolicySpec

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    found = {}
    for path in sorted((HERE / "own").glob("*.yaml")):
        read = yaml.safe_load(path.read_text())
        found |= {f"{path.stem}/{case['name']}": case for case in (read["cases"] if isinstance(read, dict) else read)}
    return found


def test_every_case_is_kept_from_getting_lost(cases: dict[str, Any]) -> None:
    listed = {line.strip() for line in (HERE / "passing.txt").read_text().splitlines() if line.startswith("own_")}
    assert listed == cases.keys()


def test_every_case_ends_with_an_expectation_and_says_where_it_comes_from(cases: dict[str, Any]) -> None:
    assert cases
    assert [name for name, case in cases.items() if "expect" not in case["steps"][-1] or not case.get("ref")] == []


def test_names_are_unique_in_their_file(cases: dict[str, Any]) -> None:
    written = [line for path in (HERE / "own").glob("*.yaml") for line in path.read_text().splitlines()]
    assert sum(line.startswith("- name: ") for line in written) == len(cases)


def _fields(struct: type, path: str = "") -> set[str]:
    """Return the paths of all fields of a struct, by their names in JSON."""
    found = set()
    for field in msgspec.structs.fields(struct):
        inner = [each for each in (field.type, *get_args(field.type)) if isinstance(each, type)]
        below = next((each for each in inner if issubclass(each, msgspec.Struct)), None)
        at = f"{path}{field.encode_name}"
        found |= {at} if below is None or field.name == "target_ref" else _fields(below, f"{at}.")
    return found


def _said(value: object, path: str = "") -> set[str]:
    if isinstance(value, dict) and path != "targetRef":
        return {found for key, each in value.items() for found in _said(each, f"{path}.{key}" if path else key)}
    return {path, f"{path}={value}"}


def test_every_word_of_a_workload_policy_has_a_case(cases: dict[str, Any]) -> None:
    steps = [step["create"] for case in cases.values() for step in case["steps"] if "create" in step]
    created = [each for some in steps for each in (some if isinstance(some, list) else [some])]
    said = {found for each in created if each["kind"] == "WorkloadPolicy" for found in _said(each["spec"])}
    words = {f"rescheduling.policy={word}" for word in RESCHEDULING}
    words |= {f"ranks.placement={word}" for word in PLACEMENTS if word != ANY}
    words |= {f"ranks.from={word}" for word in RANK_SOURCES if word != INDEX}
    assert (_fields(WorkloadPolicySpec) | words) - said == set()
