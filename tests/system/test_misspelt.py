"""A misspelt annotation does not silently lose the gang."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from phalanx.cli.group import group
from phalanx.model.annotation_values import KNOWN, unknown
from phalanx.model.gates import Gates
from phalanx.serve.queries.manifests import Manifests
from support.lifecycle.manifests import EVERY_KIND
from support.simulated_cluster import simulated_cluster
from support.virtual_time import VirtualLoop, run

WRONG = "scheduling.phalanx.dev/gangs"
HINT = f"annotation {WRONG} means nothing to Phalanx; did you mean scheduling.phalanx.dev/gang?"
SOURCES = Path(__file__).parents[2]


@pytest.mark.parametrize("kind", EVERY_KIND)
def test_an_event_on_the_workload_says_which_annotation_means_nothing(kind: str) -> None:
    async def main(loop: VirtualLoop) -> None:
        async with simulated_cluster(1) as cluster:
            wrong = EVERY_KIND[kind]("w")
            wrong["metadata"]["annotations"] = {WRONG: "true"}
            await cluster.apply(wrong)
            await cluster.settle()
            announced = [e for e in cluster.all("Event") if e.get("reason") == "UnknownAnnotation"]
            about = {(e.get("regarding") or e.get("involvedObject"))["kind"] for e in announced}
            assert kind in about
            assert all((e.get("note") or e.get("message")) == HINT for e in announced)

    run(main)


def test_group_and_whatif_say_it_too(tmp_path: Path) -> None:
    wrong = EVERY_KIND["Job"]("w")
    wrong["metadata"]["annotations"] = {WRONG: "true"}
    file = tmp_path / "job.json"
    file.write_text(json.dumps(wrong))
    answer = CliRunner().invoke(group, ["-f", str(file)], standalone_mode=False)
    assert HINT in answer.output
    asked = Manifests(Gates(), [])
    asked.read([wrong], "default")
    assert any(HINT in note for note in asked.notes)


def test_the_hint_does_not_suggest_what_means_something_else() -> None:
    """A required topology is not a preferred one, though the words look alike."""
    (text,) = unknown({"scheduling.phalanx.dev/required-topology": "rack"})
    assert text.endswith("did you mean scheduling.phalanx.dev/topology?")


def test_every_key_that_the_code_and_the_docs_name_is_known() -> None:
    named = {
        key
        for place, pattern in (("src", "*.py"), ("docs", "*.md"), ("examples", "*.yaml"))
        for file in (SOURCES / place).rglob(pattern)
        for key in re.findall(r"(?<![a-z]\.)scheduling\.phalanx\.dev/[a-z0-9-]+[a-z]", file.read_text())
        if file.name != "annotations.py"
    }
    versions = {key for key in named if re.search(r"/v\d", key)}
    assert named - versions - KNOWN == set()
    assert unknown(dict.fromkeys(KNOWN, "")) == []
