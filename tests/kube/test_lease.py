"""Leader election: one at a time, handed over at once, taken over when the leader is silent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from conftest_kube import eventually

from phalanx.base.clock import SystemClock
from phalanx.kube.client import HttpClient
from phalanx.kube.lease import LEASES, Elector, LeaderLost, LeaseSettings


def elector(client: Any, namespace: str, identity: str) -> Elector:
    settings = LeaseSettings("sched", namespace, duration=1.0, renew_deadline=0.6, retry=0.05)
    return Elector(client, settings, identity, SystemClock())


async def forever() -> None:
    await asyncio.Event().wait()


def test_one_leads_and_the_next_follows_at_once(run, namespace):
    async def elect(client: HttpClient) -> None:
        stop = asyncio.Event()
        first, second = elector(client, namespace, "first"), elector(client, namespace, "second")
        leading = asyncio.create_task(first.lead(stop.wait))
        await eventually(lambda: first.leading, "first leads")
        following = asyncio.create_task(second.lead(forever))
        await asyncio.sleep(0)
        assert not second.leading
        stop.set()
        await leading
        await eventually(lambda: second.leading, "second leads", timeout=0.9)  # released, not run out
        lease = json.loads(await client.get(LEASES, "sched", namespace))
        assert lease["spec"]["holderIdentity"] == "second"
        assert lease["spec"]["leaseTransitions"] == 1
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    run(elect)


def test_who_loses_the_lease_stops_working(run, namespace):
    async def elect(client: HttpClient) -> None:
        stopped = asyncio.Event()

        async def work() -> None:
            try:
                await forever()
            finally:
                stopped.set()

        first = elector(client, namespace, "first")
        leading = asyncio.create_task(first.lead(work))
        await eventually(lambda: first.leading, "first leads")
        # Somebody else writes himself into the lease.
        await client.patch(LEASES, "sched", {"spec": {"holderIdentity": "usurper"}}, namespace)
        with pytest.raises(LeaderLost):
            await leading
        assert stopped.is_set()

    run(elect)


def test_a_silent_leader_is_replaced(run, namespace):
    async def elect(client: HttpClient) -> None:
        dead = elector(client, namespace, "dead")
        assert await dead._create("2020-01-01T00:00:00.000000Z")  # held, and never renewed again
        second = elector(client, namespace, "second")
        task = asyncio.create_task(second.lead(forever))
        await eventually(lambda: second.leading, "takes over", timeout=5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(elect)
