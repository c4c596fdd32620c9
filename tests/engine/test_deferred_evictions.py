"""Victims with different grace periods are evicted so that they are gone at the same time."""

from __future__ import annotations

from phalanx.testing import Cluster
from phalanx.testing.builders import node, pod

CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- reservations: {deferEvictions: %s}
"""


def preempting(defer: str = "true", short: int = 10, long: int = 100) -> Cluster:
    """One node with two victims; a pod of higher priority needs the room of both."""
    run = Cluster(config=CONFIG % defer, grace=True).see(node("n").cpu(2))
    for name, grace in (("short", short), ("long", long)):
        victim = pod(name).cpu(1)
        victim.spec["terminationGracePeriodSeconds"] = grace
        run.see(victim)
    run.step()
    assert {"short", "long"} <= set(run.placed)
    run.see(pod("urgent").cpu(2).priority(10)).step()
    return run


def test_the_shorter_grace_period_begins_later() -> None:
    run = preempting()
    assert run.evicted == ["long"]
    assert run.engine.next_wake() is not None
    run.step(89.0)
    assert run.evicted == ["long"]
    run.step(1.0)
    assert sorted(run.evicted) == ["long", "short"]
    run.gone("Pod", "short").gone("Pod", "long").step()
    assert "urgent" in run.placed


def test_a_victim_is_spared_if_the_preemptor_is_gone() -> None:
    run = preempting()
    run.gone("Pod", "urgent").step()
    run.step(500.0)
    assert run.evicted == ["long"]


def test_equal_grace_periods_are_not_deferred() -> None:
    assert sorted(preempting(short=98).evicted) == ["long", "short"]


def test_it_can_be_switched_off() -> None:
    assert sorted(preempting("false").evicted) == ["long", "short"]


def test_a_century_of_grace_defers_others_by_five_minutes_at_most() -> None:
    run = preempting(long=100 * 366 * 86_400)
    assert run.evicted == ["long"]
    run.step(290.0)
    assert sorted(run.evicted) == ["long", "short"]
