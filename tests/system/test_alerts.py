"""The PrometheusRule of deploy/monitoring, evaluated where promtool is on PATH: each alert on what it is for only."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.programs import program
from support.rights import DEPLOY

Json = dict[str, Any]
RULES = yaml.safe_load((DEPLOY / "monitoring" / "prometheusrule.yaml").read_text())["spec"]
ALERTS = {rule["alert"]: rule for rule in RULES["groups"][0]["rules"]}

# Series, one value a minute, as one scraped process exports them: on a healthy cluster, and where the alert is for.
ATTEMPTS = "scheduler_schedule_attempts_total"
SLI = "scheduler_pod_scheduling_sli_duration_seconds_bucket"
SERIES = {
    "PhalanxGroupsFail": {
        'scheduler_podgroup_schedule_attempts_total{result="error",profile="phalanx"}': ("0x120", "0+1x120"),
        'scheduler_podgroup_schedule_attempts_total{result="scheduled",profile="phalanx"}': ("0+9x120", "0+9x120"),
    },
    "PhalanxQueueDoesNotMove": {
        'scheduler_pending_pods{queue="active"}': ("8x120", "8x120"),
        'scheduler_pending_pods{queue="gated"}': ("5x120", "5x120"),
        ATTEMPTS + '{result="scheduled",profile="phalanx"}': ("0+8x120", "7x120"),
        ATTEMPTS + '{result="unschedulable",profile="phalanx"}': ("3x120", "3x120"),
    },
    "PhalanxWaitsLong": {
        SLI + '{attempts="1",le="60"}': ("0+10x120", "0+5x120"),
        SLI + '{attempts="1",le="600"}': ("0+10x120", "0+5x120"),
        SLI + '{attempts="1",le="1200"}': ("0+10x120", "0+10x120"),
        SLI + '{attempts="1",le="+Inf"}': ("0+10x120", "0+10x120"),
    },
    "PhalanxEvictsMuch": {
        "scheduler_preemption_victims_sum": ("0+1x120", "0+5x120"),
        "scheduler_workload_preemption_victims_sum": ("0+1x120", "0+5x120"),
    },
    "PhalanxBindsHang": {"phalanx_binds_in_flight": ("0 900 0 900 0x116", "900x120")},
    "PhalanxControllerFails": {'phalanx_controller_failures_total{controller="jobs"}': ("2x120", "0+2x120")},
    "PhalanxWebhookFails": {
        'phalanx_webhook_answers_total{outcome="linked"}': ("0+9x120", "0+9x120"),
        'phalanx_webhook_answers_total{outcome="failed"}': ("1x120", "0+1x120"),
    },
    "PhalanxDiskFull": {"phalanx_store_space_alarm": ("0x120", "1x120")},
    "PhalanxStoreDamaged": {"phalanx_store_damaged": ("0x120", "1x120")},
    "PhalanxGangsDegraded": {
        'phalanx_groups{state="Degraded"}': ("0x120", "1x120"),
        'phalanx_groups{state="Running"}': ("4x120", "4x120"),
    },
    "PhalanxPromisesBroken": {
        'phalanx_promises_total{result="kept"}': ("0+1x120", "0+1x120"),
        'phalanx_promises_total{result="late"}': ("1x120", "0+1x120"),
    },
    "PhalanxObjectsSetAside": {"phalanx_objects_set_aside": ("0x120", "1x120")},
}


def fires(name: str, values: int, directory: Path) -> bool:
    """Return whether an alert fires after 100 minutes of its healthy (0) or bad (1) series."""
    (directory / "rules.yaml").write_text(yaml.safe_dump(RULES))
    series = []
    for metric, column in SERIES[name].items():
        bare, _, labels = metric.rstrip("}").partition("{")
        scraped = ",".join(filter(None, (labels, 'instance="10.0.0.1:10259"', 'job="phalanx"')))
        series.append({"series": f"{bare}{{{scraped}}}", "values": column[values]})
    none: Json = {"eval_time": "100m", "alertname": name, "exp_alerts": []}
    test = {"interval": "1m", "input_series": series, "alert_rule_test": [none]}
    whole = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (directory / "test.yaml").write_text(yaml.safe_dump(whole))
    command = [program("promtool"), "test", "rules", "test.yaml"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 or f"alertname: {name}" in done.stderr, done.stderr
    return done.returncode != 0


def test_every_alert_has_series() -> None:
    assert set(SERIES) == set(ALERTS)


@pytest.mark.parametrize("name", SERIES)
def test_an_alert_fires_where_it_should_and_not_else(name: str, tmp_path: Path) -> None:
    assert [fires(name, values, tmp_path) for values in (0, 1)] == [False, True]
