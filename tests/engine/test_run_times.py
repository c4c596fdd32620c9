"""How long a pod runs is learned from earlier runs of its workload, if neither the pod nor its policy says so."""

from __future__ import annotations

import pytest

from phalanx.engine.explain.ask import why
from phalanx.engine.reservations import FOREVER
from phalanx.engine.scheduling.attempt import run_times
from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod, pod_group
from phalanx.testing.builders.base import timestamp
from phalanx.testing.builders.pod import PodBuilder

PROMISED = "scheduling.phalanx.dev/StartPromised"


def of_job(name: str, job: str, run: Cluster, uid: str = "") -> PodBuilder:
    return pod(name).cpu(1).created(run.now).owner("Job", job, uid=uid or job)


def life(run: Cluster, made: PodBuilder, seconds: float, phase: str = "Succeeded") -> None:
    """A pod comes, runs for so long, ends and is deleted."""
    name = made.metadata["name"]
    run.see(made).step()
    made.spec["nodeName"] = run.placed[name]
    made.status["startTime"] = timestamp(run.now)
    run.see(made).step(seconds)
    made.status["phase"] = phase
    run.see(made).step()
    run.gone("Pod", name).step()


def expected(run: Cluster, name: str) -> float:
    return run.engine.starts.times.run_times.expected(run.engine.pods.records[f"default/{name}"])


def cluster(nodes: int = 2) -> Cluster:
    return Cluster(now=1_800_000_000.0).see(*(node(f"n{i}").cpu(1) for i in range(nodes)))


def test_a_job_is_expected_to_run_as_long_as_the_longest_of_its_earlier_runs() -> None:
    run = cluster()
    for number, seconds in enumerate((60, 90, 70)):
        life(run, of_job(f"train-{number}", "train", run, uid=f"run{number}"), seconds)
    run.see(of_job("train-x", "train", run, uid="now"), of_job("other-x", "other", run)).step()
    assert (expected(run, "train-x"), expected(run, "other-x")) == (90.0, FOREVER)
    item = why(run.engine.scheduler, "Pod", "default", "train-x").items[0]
    assert item.scheduled
    run.see(of_job("train-y", "train", run, uid="now")).step()
    (item,) = why(run.engine.scheduler, "Pod", "default", "train-y").items
    assert item.run_time == "90 s, from 3 earlier runs"


def test_a_gang_is_promised_a_start_from_what_earlier_runs_took() -> None:
    run = cluster(2)
    life(run, of_job("first", "train", run, uid="a"), 100)
    began = run.now
    running = of_job("second", "train", run, uid="b")
    run.see(running).step()
    running.spec["nodeName"] = run.placed["second"]
    running.status["startTime"] = timestamp(began)
    run.see(running)
    run.see(pod_group("gang").gang(2), *(pod(f"gang-{i}").cpu(1).group("gang").created(run.now) for i in range(2)))
    run.step()
    run.step(1.0)
    condition = next(c for c in run.objects["PodGroup"]["gang"].status.conditions or () if c.type == PROMISED)
    assert condition.status == "True" and timestamp(began + 100) in condition.message


def test_what_the_pod_says_goes_before_its_history() -> None:
    run = cluster()
    life(run, of_job("train-0", "train", run, uid="a"), 60)
    limited = of_job("train-1", "train", run, uid="b")
    limited.spec["activeDeadlineSeconds"] = 500
    run.see(limited).step()
    assert expected(run, "train-1") == 500


def test_jobs_of_a_cron_job_share_a_history() -> None:
    run = cluster()
    life(run, of_job("a", "report-29123456", run), 30)
    run.see(of_job("b", "report-29123516", run), of_job("c", "report-of-2024", run)).step()
    assert (expected(run, "b"), expected(run, "c")) == (30.0, FOREVER)


def test_a_group_that_is_created_again_has_a_history_and_its_pods_are_one_run() -> None:
    run = cluster()
    run.see(pod_group("gang").gang(2).uid("g1"))
    members = [pod(f"gang-{i}").cpu(1).group("gang").created(run.now) for i in range(2)]
    run.see(*members).step()
    for member, seconds in zip(members, (40, 20), strict=True):
        member.spec["nodeName"] = run.placed[member.metadata["name"]]
        member.status["startTime"] = timestamp(run.now)
        run.see(member).step(seconds)
        member.status["phase"] = "Succeeded"
        run.see(member).step()
    for name in ("gang-0", "gang-1"):
        run.gone("Pod", name)
    run.gone("PodGroup", "gang").step()
    run.see(pod_group("gang").gang(3).uid("g2"))
    run.see(*(pod(f"gang-{i}").cpu(1).group("gang").created(run.now) for i in range(3))).step()
    (item,) = why(run.engine.scheduler, "PodGroup", "default", "gang").items
    assert item.run_time == "40 s, from 1 earlier run"


def test_failed_and_deleted_pods_teach_nothing() -> None:
    run = cluster()
    life(run, of_job("a", "train", run), 5, phase="Failed")
    run.see(of_job("b", "train", run)).step(10.0)
    run.gone("Pod", "b").step()
    run.see(of_job("c", "train", run)).step()
    assert expected(run, "c") == FOREVER


def test_the_history_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_times, "MOST_WORKLOADS", 3)
    run = cluster()
    for number in range(5):
        life(run, of_job(f"a{number}", f"job{number}", run), 10)
    for number in range(9):
        life(run, of_job(f"b{number}", "often", run, uid=f"run{number}"), 100 - number)
    run.see(of_job("x", "job0", run), of_job("y", "often", run)).step()
    assert (expected(run, "x"), expected(run, "y")) == (FOREVER, 96.0), "of the last five runs"
