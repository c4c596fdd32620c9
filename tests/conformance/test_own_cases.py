"""Our own conformance cases can be read, say what they expect, and are all on the list that `.ci/conformance` keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    return {
        f"{path.stem}/{case['name']}": case
        for path in sorted((HERE / "own").glob("*.yaml"))
        for case in yaml.safe_load(path.read_text())
    }


def test_every_case_is_kept_from_getting_lost(cases: dict[str, Any]) -> None:
    listed = {line.strip() for line in (HERE / "passing.txt").read_text().splitlines() if line.startswith("own_")}
    assert listed == cases.keys()


def test_every_case_ends_with_an_expectation_and_says_where_it_comes_from(cases: dict[str, Any]) -> None:
    assert cases
    assert [name for name, case in cases.items() if "expect" not in case["steps"][-1] or not case.get("ref")] == []


def test_names_are_unique_in_their_file(cases: dict[str, Any]) -> None:
    written = [line for path in (HERE / "own").glob("*.yaml") for line in path.read_text().splitlines()]
    assert sum(line.startswith("- name: ") for line in written) == len(cases)
