"""A controller, kubelet or scheduler that fails in `phalanx up` is reported and counted; the cluster goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from phalanx.controllers.runtime.cache import Key
from phalanx.controllers.workloads.job.controller import JobController
from phalanx.engine.engine import Engine
from phalanx.serve import component
from support.local_cluster import LocalCluster, local_cluster
from support.manifests import job
from support.waiting import eventually

JOBS = "/apis/batch/v1/namespaces/default/jobs"


def running(cluster: LocalCluster, name: str) -> bool:
    pods = cluster.get(f"/api/v1/namespaces/default/pods?labelSelector=job-name%3D{name}")["items"]
    return any((pod.get("status") or {}).get("phase") == "Running" for pod in pods)


def metric(cluster: LocalCluster, start: str) -> float:
    lines = cluster.ask("GET", "/metrics").body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


def test_errors_of_controllers_and_scheduler_do_not_end_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(component, "FIRST_RESTART", 0.01)
    reconcile, run, step = JobController.reconcile, JobController.run, Engine.step
    planted = {"reconcile": 2, "run": 1, "step": 1}

    def due(what: str) -> bool:
        planted[what] -= 1
        return planted[what] >= 0

    async def ill_reconcile(self: JobController, key: Key) -> None:
        if key.name == "ill" and due("reconcile"):
            raise SystemExit("planted")
        await reconcile(self, key)

    async def ill_run(self: JobController) -> None:
        if due("run"):
            await asyncio.sleep(0.05)
            raise RuntimeError("planted: the controller's loop ends")
        await run(self)

    monkeypatch.setattr(JobController, "reconcile", ill_reconcile)
    monkeypatch.setattr(JobController, "run", ill_run)

    def ill_step(self: Engine, *args: Any) -> Any:
        if due("step"):
            raise RuntimeError("planted: the engine has a defect")
        return step(self, *args)

    cluster = local_cluster(tmp_path, nodes=2)
    cluster.start()
    try:
        monkeypatch.setattr(Engine, "step", ill_step)
        cluster.create(JOBS, job("well", 1, 1))
        cluster.create(JOBS, job("ill", 1, 1))
        eventually(lambda: running(cluster, "well") and running(cluster, "ill"), "both Jobs run")
        assert max(planted.values()) < 0, f"not everything planted happened: {planted}"
        eventually(lambda: cluster.ask("GET", "/readyz").code == 200, "ready again")
        assert metric(cluster, 'phalanx_part_restarts_total{part="controllers"}') == 1
        assert metric(cluster, 'phalanx_part_restarts_total{part="scheduler"}') == 1
        assert metric(cluster, 'phalanx_controller_failures_total{controller="job"}') == 2
    finally:
        cluster.stop()
