"""Random changes to workloads: nothing restarts, blocks, is duplicated or stops reporting.

`make fuzz-workloads SEQUENCES=…` runs more sequences of every kind.
"""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from phalanx.controllers.workloads.registry import KINDS
from phalanx.model.groups import forest
from support.lifecycle.kinds import kinds
from support.lifecycle.run import Broken
from support.lifecycle.sequences import BRANCHES, live
from support.lifecycle.trees import tell_all, trees_of

TREES = 5  # of every kind, always the same: fifty stories; `.ci/run` tells fresh ones
WITHOUT_SEQUENCES = {
    "RayJob": "its RayCluster is",
    "ReplicationController": "no groups are made of it",
    "DaemonSet": "no groups are made of it",
    "DisaggregatedSet": "its LeaderWorkerSets are",
}


@pytest.mark.parametrize("kind", kinds())
def test_whatever_happens_to_a_workload_it_lives_on(kind: str) -> None:
    announced = tell_all(trees_of(kind, range(TREES)))
    assert not announced.broken, "\n".join(announced.broken)
    assert len(announced.branches) == TREES * BRANCHES


def test_sequences_cover_every_kind_that_becomes_groups() -> None:
    assert set(kinds()) | set(WITHOUT_SEQUENCES) == {kind.resource.kind for kind in KINDS}


def test_a_job_smaller_than_its_authors_gang_waits_and_says_what_to_do() -> None:
    live("Job of its author's Workload", 7000128, ["crash_mid_write", "retry"])


def test_the_model_sees_a_gang_that_starts_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    right = forest.spec_of_object

    def every_minimum_is_one(obj: Any) -> Any:
        return replace(right(obj), minimum=1)

    story = {"parallelism": 4, "cpu": 3, "priority": ""}
    live("Job", 6, [], story)
    monkeypatch.setattr(forest, "spec_of_object", every_minimum_is_one)
    with pytest.raises(Broken, match="needs 4 pods and has 2 on nodes"):
        live("Job", 6, [], story)
