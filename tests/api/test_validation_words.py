"""What is wrong with an object, in the words and in the order of kube-apiserver 1.37.

`validation_words.jsonl` was made by asking the validation of Kubernetes itself about the same objects; who reads
error messages with a program (or in a manual) finds the same here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from phalanx.base.errors import ApiProblem
from support.api_world import World

CASES: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "validation_words.jsonl").read_text().splitlines()
]


@pytest.fixture(scope="module")
def server() -> Any:
    made = World({"GenericWorkload": True})
    yield made
    made.close()


@pytest.mark.parametrize("case", CASES, ids=[case["case"] for case in CASES])
def test_the_complaint_is_the_one_of_kubernetes(server: World, case: dict[str, Any]) -> None:
    with pytest.raises(ApiProblem) as refused:
        server.ask("create", case["path"], case["object"], dryRun="All")
    assert refused.value.message == case["message"]
