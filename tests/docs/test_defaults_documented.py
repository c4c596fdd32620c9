"""The table of defaults in docs/configuration.md has the values of the code, and no setting is missing."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from phalanx.engine.framework.settings import EngineSettings, ReservationSettings
from phalanx.engine.plugins.config import default_config
from phalanx.model.groups.policy import DEFAULT

PAGE = (Path(__file__).parents[2] / "docs" / "configuration.md").read_text()
TABLE = PAGE.partition("\n## Defaults\n")[2].partition("\n## ")[0]


def rows() -> dict[str, str]:
    found = {}
    for line in TABLE.splitlines():
        names, _, rest = line.removeprefix("| ").partition(" | ")
        for name in re.findall(r"`([^`]+)`", names) or [names]:
            found[name] = rest.partition(" |")[0].strip("`")
    return found


def shown(value: Any) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def camel(name: str) -> str:
    first, *others = name.replace("fifo", "FIFO").split("_")
    return first + "".join(word[0].upper() + word[1:] for word in others)


def code() -> dict[str, Any]:
    config, engine = default_config(), EngineSettings()
    election, client = config.leader_election, config.client_connection
    return {
        "podInitialBackoffSeconds": config.initial_backoff,
        "podMaxBackoffSeconds": config.max_backoff,
        "leaderElection.leaderElect": election.enabled,
        "leaderElection.leaseDuration": f"{election.lease_duration:g}s",
        "leaderElection.renewDeadline": f"{election.renew_deadline:g}s",
        "leaderElection.retryPeriod": f"{election.retry_period:g}s",
        "leaderElection.resourceName": election.lease_name,
        "leaderElection.resourceNamespace": election.lease_namespace,
        "clientConnection.qps": client.qps,
        "clientConnection.burst": client.burst,
        **{camel(field.name): getattr(ReservationSettings(), field.name) for field in fields(ReservationSettings)},
        "counts.min": DEFAULT.min_count,
        "counts.desired": DEFAULT.desired_count,
        "counts.max": DEFAULT.max_count,
        "ranks.from": DEFAULT.rank_source,
        "ranks.placement": DEFAULT.rank_placement,
        "rescheduling.policy": DEFAULT.rescheduling,
        "rescheduling.graceSeconds": DEFAULT.grace_seconds,
        "rescheduling.maxRestarts": DEFAULT.max_restarts,
        "rescheduling.backoffSeconds": DEFAULT.backoff_seconds,
        "timeouts.membersSeconds": DEFAULT.members_seconds,
        "timeouts.scheduleSeconds": DEFAULT.schedule_seconds,
        "timeouts.readySeconds": DEFAULT.ready_seconds,
        "preemption.minRuntimeSeconds": DEFAULT.min_runtime_seconds,
        "disruption.maxUnavailableReplicas": DEFAULT.max_unavailable_replicas,
        "expectedDurationSeconds": DEFAULT.expected_duration_seconds,
        "retry of an unschedulable unit without an event": f"{engine.flush_after:g} s",
        "search budget of one attempt": f"{engine.search_budget:,} expansions",
        "slice of a search": f"{engine.search_slice:,} steps",
    }


@pytest.mark.parametrize("setting", code())
def test_a_documented_default_is_the_one_in_the_code(setting: str) -> None:
    assert rows().get(setting) == shown(code()[setting])
