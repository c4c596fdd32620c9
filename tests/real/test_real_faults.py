"""Restarts, failover, and a control plane that stops: no node is over-committed and no gang stays partial."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pytest

from support.real_cluster import Process, RealCluster, Refused
from support.waiting import eventually

GANGS, SIZE = 8, 3  # of one CPU each: four rounds fill the nodes of the fixture by half


@pytest.fixture(scope="module")
def replicas(native: RealCluster) -> list[Process]:
    """Two replicas of the scheduler; the one that leads is found by its log."""
    return [native.start("scheduler") for _ in range(2)]


def leader(cluster: RealCluster, replicas: list[Process]) -> Process:
    path = "/apis/coordination.k8s.io/v1/namespaces/phalanx-system/leases/phalanx-scheduler"

    def found() -> Process | None:
        holder = cluster.ask("GET", path)["spec"].get("holderIdentity") or "nothing"
        return next((replica for replica in replicas if replica.alive and f"leading as {holder}" in replica.text), None)

    process: Process = eventually(found, "a replica leads")
    return process


def submit(cluster: RealCluster, space: str, during: Callable[[], None]) -> list[str]:
    """Create gangs; half of them before what is to happen, half after it."""
    names = [f"gang-{number}" for number in range(GANGS)]
    for name in names[: GANGS // 2]:
        cluster.gang(space, name, SIZE)
    during()
    for name in names[GANGS // 2 :]:
        eventually(lambda name=name: made(cluster, space, name), f"{name} is created")
    return names


def made(cluster: RealCluster, space: str, name: str) -> bool:
    """Create a gang on a server that may be away for a while."""
    try:
        cluster.gang(space, name, SIZE)
    except (OSError, Refused):
        return False
    return True


def clear(cluster: RealCluster, space: str) -> None:
    for pod in cluster.pods(space):
        name = pod["metadata"]["name"]
        cluster.ask("DELETE", f"/api/v1/namespaces/{space}/pods/{name}?gracePeriodSeconds=0")


def settled(cluster: RealCluster, space: str, gangs: list[str]) -> None:
    cluster.wait_whole(space, *gangs)
    assert cluster.broken() == []
    clear(cluster, space)


def test_the_standby_takes_over_when_the_leader_is_killed(native: RealCluster, replicas: list[Process]) -> None:
    space = native.namespace("killed")
    first = leader(native, replicas)
    gangs = submit(native, space, first.kill)
    settled(native, space, gangs)
    assert leader(native, replicas) is not first
    first.start()
    first.wait_for_log(r"(?m)^ready ")


def test_a_leader_that_stood_still_does_not_act_when_it_comes_back(
    native: RealCluster, replicas: list[Process]
) -> None:
    space = native.namespace("stopped")
    first = leader(native, replicas)

    def pause() -> None:
        first.signal(signal.SIGSTOP)
        eventually(lambda: leader(native, [r for r in replicas if r is not first]), "the other one leads")
        first.signal(signal.SIGCONT)

    settled(native, space, submit(native, space, pause))
    assert all(replica.alive for replica in replicas)


def test_a_scheduler_that_is_ended_hands_over_at_once(native: RealCluster, replicas: list[Process]) -> None:
    space = native.namespace("ended")
    first = leader(native, replicas)
    codes: list[int] = []
    settled(native, space, submit(native, space, lambda: codes.append(first.end())))
    assert codes == [0]
    first.start()
    first.wait_for_log(r"(?m)^ready ")


@pytest.mark.parametrize("seconds", [3, 14])
def test_an_api_server_that_stands_still(native: RealCluster, replicas: list[Process], seconds: int) -> None:
    space = native.namespace(f"still-{seconds}")

    def pause() -> None:
        native.server.signal(signal.SIGSTOP)
        time.sleep(seconds)  # the fault itself
        native.server.signal(signal.SIGCONT)
        native.wait_ready()

    settled(native, space, submit(native, space, pause))
    assert all(replica.alive for replica in replicas)


def test_an_api_server_that_is_killed(native: RealCluster, replicas: list[Process]) -> None:
    space = native.namespace("crashed")

    def crash() -> None:
        native.server.kill()
        native.restart_server()

    settled(native, space, submit(native, space, crash))
    assert all(replica.alive for replica in replicas)


def test_a_slow_etcd(native: RealCluster, replicas: list[Process]) -> None:
    space = native.namespace("slow")

    def pulses() -> None:
        for _ in range(10):
            native.etcd.signal(signal.SIGSTOP)
            time.sleep(0.5)  # the fault itself
            native.etcd.signal(signal.SIGCONT)
            time.sleep(0.1)
        native.wait_ready()

    settled(native, space, submit(native, space, pulses))
    assert all(replica.alive for replica in replicas)
