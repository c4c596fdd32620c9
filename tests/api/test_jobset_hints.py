"""Fields that KEP-1068 considered for JobSets are answered with a hint to the one it settled on."""

from __future__ import annotations

import pytest

from phalanx.base.errors import BadRequest
from support.api_world import World

PATH = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/ns/jobsets"


def test_schedule_at_once_names_gang_config(world: World) -> None:
    body = {"metadata": {"name": "j"}, "spec": {"scheduleAtOnce": True, "replicatedJobs": []}}
    with pytest.raises(BadRequest, match=r'unknown field "spec.scheduleAtOnce" \(use gangConfig\)'):
        world.create(PATH, body, fieldValidation="Strict")
