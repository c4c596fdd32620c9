"""Hints in answers about JobSets: fields that KEP-1068 only considered, and Jobs that will be refused."""

from __future__ import annotations

import pytest

from phalanx.base.errors import BadRequest
from support.api_world import APPLY, World

PATH = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ns/jobsets"


def test_schedule_at_once_names_gang_config(world: World) -> None:
    body = {"metadata": {"name": "j"}, "spec": {"scheduleAtOnce": True, "replicatedJobs": []}}
    with pytest.raises(BadRequest, match=r'unknown field "spec.scheduleAtOnce" \(use gangConfig\)'):
        world.create(PATH, body, fieldValidation="Strict")


def test_a_template_whose_jobs_will_be_refused_is_accepted_with_a_warning(world: World) -> None:
    """As upstream, whose webhook does not look at Job templates."""
    pod = {"containers": [{"name": "c"}]}
    jobs = [{"name": "a", "template": {"spec": {"parallelism": 2, "template": {"spec": pod}}}}]
    body = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": {"replicatedJobs": jobs}}
    path = "spec.replicatedJobs[0].template.spec"
    expected = (
        f"{path}.completions: Required value: when completion mode is Indexed",
        f"{path}.template.spec.containers[0].image: Required value",
    )
    answer = world.ask("create", PATH, {**body, "metadata": {"name": "j"}})
    assert (answer.code, answer.warnings) == (201, expected)
    applied = world.ask("patch", f"{PATH}/k", {**body, "metadata": {"name": "k"}}, APPLY, fieldManager="me")
    assert (applied.code, applied.warnings) == (201, expected)
    suspended = world.ask("patch", f"{PATH}/j", {"spec": {"suspend": True}}, "application/merge-patch+json")
    assert (suspended.code, suspended.warnings) == (200, expected)
    status = world.ask("patch", f"{PATH}/j/status", {"status": {"restarts": 1}}, "application/merge-patch+json")
    assert (status.code, status.warnings) == (200, ())
