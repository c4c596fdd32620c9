"""Feature gates are checked when the process starts, with a message that says what to change."""

from __future__ import annotations

import pytest

from phalanx.base.errors import ConfigProblem
from phalanx.model.gates import KNOWN, Gates


def test_defaults_make_sense_together() -> None:
    gates = Gates.parse("")
    assert gates("GenericWorkload") and gates("GangScheduling") and gates("CompositePodGroup")
    assert not gates("PodGroupPreemptionPolicy") and gates("MutableMinGroupCount")
    assert gates.as_dict().keys() == KNOWN.keys()


def test_gates_are_set_by_text() -> None:
    gates = Gates.parse(" PodGroupPreemptionPolicy=true, GangScheduling=false ")
    assert gates("PodGroupPreemptionPolicy") and not gates("GangScheduling")
    assert gates == Gates({"PodGroupPreemptionPolicy": True, "GangScheduling": False})


def test_a_gate_that_depends_on_another_does_not_prevent_that_from_being_off() -> None:
    assert Gates.parse("CompositePodGroup=false")("MutableMinGroupCount")


@pytest.mark.parametrize(
    ("text", "mentions"),
    [
        ("NoSuchGate=true", ["NoSuchGate"]),
        ("GenericWorkload", ["GenericWorkload=true"]),
        ("GenericWorkload=maybe", ["maybe", "GenericWorkload"]),
        ("TopologyAwareWorkloadScheduling=false", ["CompositePodGroup", "TopologyAwareWorkloadScheduling"]),
        ("GenericWorkload=false", ["GangScheduling", "GenericWorkload"]),
    ],
)
def test_bad_settings_stop_the_start(text: str, mentions: list[str]) -> None:
    with pytest.raises(ConfigProblem) as problem:
        Gates.parse(text)
    assert all(mention in str(problem.value) for mention in mentions)
