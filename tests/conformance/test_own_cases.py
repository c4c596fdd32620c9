"""Our own conformance cases can be read, say what they expect, and are all on the list that `.ci/conformance` keeps."""

from __future__ import annotations

from pathlib import Path

import yaml

HERE = Path(__file__).parent
CASES = {
    f"{path.stem}/{case['name']}": case
    for path in sorted((HERE / "own").glob("*.yaml"))
    for case in yaml.safe_load(path.read_text())
}


def test_every_case_is_kept_from_getting_lost():
    listed = {line.strip() for line in (HERE / "passing.txt").read_text().splitlines() if line.startswith("own_")}
    assert listed == CASES.keys()


def test_every_case_ends_with_an_expectation_and_says_where_it_comes_from():
    assert CASES
    assert [name for name, case in CASES.items() if "expect" not in case["steps"][-1] or not case.get("ref")] == []


def test_names_are_unique_in_their_file():
    written = [line for path in (HERE / "own").glob("*.yaml") for line in path.read_text().splitlines()]
    assert sum(line.startswith("- name: ") for line in written) == len(CASES)
