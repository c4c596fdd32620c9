"""One parser for WorkloadPolicies and their short forms: what it takes, what it reports, what it then leaves alone."""

from __future__ import annotations

import msgspec
import pytest

from phalanx.model.groups.policy import DEFAULT, YEAR, Parsed, parse_annotations, parse_spec
from phalanx.model.objects.policy import WorkloadPolicySpec


def parse(**spec: object) -> Parsed:
    return parse_spec(msgspec.convert(spec, WorkloadPolicySpec))


def test_a_full_policy_sets_every_field() -> None:
    parsed = parse(
        counts={"min": 8, "desired": 12, "max": 16},
        ranks={"from": "Label", "key": "rank", "placement": "Stripe", "topologyKey": "rack", "coPlaceWith": "ps"},
        rescheduling={"policy": "Replace", "graceSeconds": 1, "maxRestarts": 2, "backoffSeconds": 3},
        timeouts={"membersSeconds": 4, "scheduleSeconds": 5, "readySeconds": 6},
        preemption={"minRuntimeSeconds": 7},
        disruption={"maxUnavailableReplicas": 1},
        expectedDurationSeconds=8,
    )
    assert (parsed.problems, parsed.notes) == ((), ())
    policy = DEFAULT.with_fields(parsed.fields)
    assert (policy.min_count, policy.desired_count, policy.max_count) == (8, 12, 16)
    assert (policy.rank_source, policy.rank_key, policy.rank_placement) == ("Label", "rank", "Stripe")
    assert (policy.rank_topology_key, policy.co_place_with) == ("rack", "ps")
    assert (policy.rescheduling, policy.grace_seconds, policy.max_restarts, policy.backoff_seconds) == (
        "Replace",
        1,
        2,
        3,
    )
    assert (policy.members_seconds, policy.schedule_seconds, policy.ready_seconds) == (4, 5, 6)
    assert (policy.min_runtime_seconds, policy.max_unavailable_replicas, policy.expected_duration_seconds) == (7, 1, 8)


def test_zeros_and_empty_words_are_as_if_absent() -> None:
    parsed = parse(
        ranks={"from": "Index", "key": "", "placement": "Pack", "topologyKey": "", "coPlaceWith": ""},
        timeouts={"membersSeconds": 0, "scheduleSeconds": 0, "readySeconds": 0},
        preemption={"minRuntimeSeconds": 0},
        expectedDurationSeconds=0,
    )
    assert parsed.problems == ()
    assert DEFAULT.with_fields(parsed.fields) == msgspec.structs.replace(DEFAULT, rank_placement="Pack")
    assert "spec.timeouts.scheduleSeconds: 0 sets no limit" in parsed.notes


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ({"rescheduling": {"policy": "Restart"}}, "spec.rescheduling.policy"),
        ({"rescheduling": {"graceSeconds": -1}}, "spec.rescheduling.graceSeconds"),
        ({"rescheduling": {"maxRestarts": -1}}, "spec.rescheduling.maxRestarts"),
        ({"ranks": {"placement": "Ring"}}, "spec.ranks.placement"),
        ({"ranks": {"from": "Name"}}, "spec.ranks.from"),
        ({"ranks": {"from": "Label"}}, "spec.ranks.key"),
        ({"ranks": {"topologyKey": "not a key"}}, "spec.ranks.topologyKey"),
        ({"ranks": {"coPlaceWith": "Not a name"}}, "spec.ranks.coPlaceWith"),
        ({"counts": {"min": 9, "max": 3}}, "spec.counts.min"),
        ({"counts": {"min": 0}}, "spec.counts.min"),
        ({"counts": {"desired": 9, "max": 3}}, "spec.counts.desired"),
        ({"timeouts": {"readySeconds": -5}}, "spec.timeouts.readySeconds"),
        ({"timeouts": {"scheduleSeconds": YEAR + 1}}, "spec.timeouts.scheduleSeconds"),
        ({"preemption": {"minRuntimeSeconds": -1}}, "spec.preemption.minRuntimeSeconds"),
        ({"disruption": {"maxUnavailableReplicas": -1}}, "spec.disruption.maxUnavailableReplicas"),
        ({"expectedDurationSeconds": -1}, "spec.expectedDurationSeconds"),
    ],
)
def test_a_wrong_value_is_named_and_changes_nothing(spec: dict[str, object], path: str) -> None:
    parsed = parse(**spec)
    assert [problem.path for problem in parsed.problems] == [path]
    assert DEFAULT.with_fields(parsed.fields) == DEFAULT


def test_a_wrong_value_leaves_the_others_in_effect() -> None:
    parsed = parse(rescheduling={"policy": "Restart", "graceSeconds": 5}, timeouts={"readySeconds": 60})
    assert parsed.fields == {"grace_seconds": 5, "ready_seconds": 60}


def test_short_forms() -> None:
    prefix = "scheduling.phalanx.dev/"
    parsed = parse_annotations(
        {
            prefix + "rescheduling-policy": "TerminateAll",
            prefix + "rank-placement": "Pack",
            prefix + "schedule-timeout": "90",
            prefix + "expected-duration": "1h30m",
            "other": "word",
        }
    )
    assert parsed.problems == ()
    assert parsed.fields == {
        "rescheduling": "TerminateAll",
        "rank_placement": "Pack",
        "schedule_seconds": 90,
        "expected_duration_seconds": 5400,
    }


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rescheduling-policy", "replace"),
        ("rescheduling-policy", ""),
        ("rank-placement", "ring"),
        ("schedule-timeout", "0"),
        ("schedule-timeout", "-5s"),
        ("schedule-timeout", "soon"),
        ("schedule-timeout", "²"),
        ("schedule-timeout", "9" * 400),
        ("expected-duration", "10000h"),
    ],
)
def test_a_wrong_short_form_is_named_and_changes_nothing(key: str, value: str) -> None:
    parsed = parse_annotations({f"scheduling.phalanx.dev/{key}": value})
    assert [problem.path for problem in parsed.problems] == [f"scheduling.phalanx.dev/{key}"]
    assert parsed.fields == {}
