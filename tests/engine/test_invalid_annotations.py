"""An annotation that cannot be used is reported on its group and ignored; every other unit is scheduled."""

from __future__ import annotations

import pytest

from phalanx.engine import decisions as d
from phalanx.model.annotation_values import MAX_CHARACTERS
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group

TO_COME = "scheduling.phalanx.dev/pods-to-come"
MIN_RESOURCES = "scheduling.phalanx.dev/min-resources"

INVALID = [
    "[" * 2000,
    '{"size":1e999,"template":{}}',
    '{"size":-1,"template":{}}',
    '{"size":10001,"template":{}}',
    '{"size":2,"template":[]}',
    '{"size":"two"}',
    '{"cpu":"-1"}',
    '{"cpu":{}}',
    '{"cpu":1e999}',
    "{" + ",".join(f'"example.com/r{i}":1' for i in range(40)) + "}",
    "x" * (MAX_CHARACTERS + 1),
]


@pytest.mark.parametrize("key", [TO_COME, MIN_RESOURCES])
@pytest.mark.parametrize("text", INVALID, ids=range(len(INVALID)))
def test_an_invalid_annotation_is_ignored_and_reported(key: str, text: str) -> None:
    run = Cluster().see(node("n0").cpu("8"))
    group = pod_group("g").gang(1).annotate(key, text).written_by("phalanx-controllers", key)
    run.see(group, pod("g-0").group("g").cpu("1"), pod("other").cpu("1"))
    run.step()
    run.see(pod_group("later").gang(1), pod("later-0").group("later").cpu("1")).step()
    assert run.placed == {"g-0": "n0", "other": "n0", "later-0": "n0"}
    (event,) = [e for e in run.log if isinstance(e, d.RecordEvent) and e.reason == "AnnotationIgnored"]
    assert event.name == "g" and key in event.message and len(event.message) <= d.MAX_EVENT_MESSAGE
    run.engine.validate()
