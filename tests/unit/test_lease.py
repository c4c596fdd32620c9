"""Leader election: one at a time, handed over at once, taken over when the leader is silent."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from phalanx.base.clock import SystemClock
from phalanx.base.errors import ApiProblem, Conflict, Forbidden, NotFound, Unreachable
from phalanx.base.resources import LEASES
from phalanx.kube.client import HttpClient
from phalanx.kube.lease import Elector, LeaderLost, LeaseSettings
from support.manual_clock import ManualClock
from support.waiting import eventually_async


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
        await eventually_async(lambda: first.leading, "first leads")
        following = asyncio.create_task(second.lead(forever))
        await asyncio.sleep(0)
        assert not second.leading
        stop.set()
        await leading
        await eventually_async(lambda: second.leading, "second leads", seconds=0.9)  # released, not run out
        lease = json.loads(await client.get(LEASES, "sched", namespace))
        assert lease["spec"]["holderIdentity"] == "second"
        assert lease["spec"]["leaseTransitions"] == 1
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)

    run(elect)


def test_a_leader_that_loses_the_lease_stops_working(run, namespace):
    async def elect(client: HttpClient) -> None:
        stopped = asyncio.Event()

        async def work() -> None:
            try:
                await forever()
            finally:
                stopped.set()

        first = elector(client, namespace, "first")
        leading = asyncio.create_task(first.lead(work))
        await eventually_async(lambda: first.leading, "first leads")
        # Another process writes itself into the lease.
        await client.patch(LEASES, "sched", {"spec": {"holderIdentity": "usurper"}}, namespace)
        with pytest.raises(LeaderLost):
            await leading
        assert stopped.is_set()

    run(elect)


def test_a_missing_right_to_renew_is_logged_once_with_its_remedy(run, namespace, caplog):
    async def elect(client: HttpClient) -> None:
        troubled = Troubled(client)
        first = elector(troubled, namespace, "first")
        leading = asyncio.create_task(first.lead(forever))
        await eventually_async(lambda: first.leading, "first leads")
        troubled.planned = [("update", Forbidden("leases is forbidden"))] * 100
        with pytest.raises(LeaderLost):
            await leading

    run(elect)
    lines = [entry.getMessage() for entry in caplog.records if "leases is forbidden" in entry.getMessage()]
    assert len(lines) == 1 and "phalanx check-cluster" in lines[0]


def test_a_silent_leader_is_replaced(run, namespace):
    async def elect(client: HttpClient) -> None:
        dead = elector(client, namespace, "dead")
        assert await dead._create("2020-01-01T00:00:00.000000Z") == "held"  # and never renewed again
        second = elector(client, namespace, "second")
        task = asyncio.create_task(second.lead(forever))
        await eventually_async(lambda: second.leading, "takes over", seconds=5)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    run(elect)


class Troubled:
    """A client whose next calls about the lease fail as listed; what is not listed goes through."""

    def __init__(self, inner: HttpClient) -> None:
        self._inner = inner
        self.planned: list[tuple[str, ApiProblem | bytes]] = []
        self.renewals = 0

    def _trouble(self, verb: str) -> bytes | None:
        if self.planned and self.planned[0][0] == verb:
            _, what = self.planned.pop(0)
            if isinstance(what, ApiProblem):
                raise what
            return what
        return None

    async def get(self, *args: Any) -> bytes:
        return self._trouble("get") or await self._inner.get(*args)

    async def create(self, *args: Any) -> bytes:
        return self._trouble("create") or await self._inner.create(*args)

    async def update(self, *args: Any) -> bytes:
        answer = self._trouble("update") or await self._inner.update(*args)
        self.renewals += 1
        return answer


@pytest.mark.parametrize(
    "trouble",
    [
        [("update", Conflict("the object has been modified"))] * 3,
        [("get", NotFound("astray"))],  # and the create that follows says that it is there
        [("update", NotFound("astray"))],
        [("get", b"not json")],
        [("get", b"[]")],
        [("update", Unreachable("no answer")), ("get", Unreachable("no answer"))],
    ],
)
def test_trouble_with_one_renewal_deposes_no_leader(run, namespace, trouble):
    async def elect(client: HttpClient) -> None:
        troubled = Troubled(client)
        leader = elector(troubled, namespace, "leader")
        leading = asyncio.create_task(leader.lead(forever))
        await eventually_async(lambda: leader.leading, "leads")
        troubled.planned = list(trouble)
        await eventually_async(lambda: not troubled.planned, "the trouble")
        done = troubled.renewals
        await eventually_async(lambda: troubled.renewals > done + 1 or leading.done(), "renewals afterwards")
        assert not leading.done(), leading.exception()
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

    run(elect)


def test_a_process_that_may_not_read_the_lease_says_once_what_to_do(run, namespace, caplog):
    async def elect(client: HttpClient) -> None:
        troubled = Troubled(client)
        troubled.planned = [("get", Forbidden("leases is forbidden"))] * 3
        leader = elector(troubled, namespace, "leader")
        leading = asyncio.create_task(leader.lead(forever))
        await eventually_async(lambda: leader.leading, "leads")
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)

    run(elect)
    (warning,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "leases is forbidden" in warning and "`phalanx check-cluster`" in warning


@pytest.mark.parametrize("settled", [True, False])
def test_the_lease_is_released_only_when_nothing_is_under_way(run, namespace, settled: bool):
    async def elect(client: HttpClient) -> None:
        leader = elector(client, namespace, "leader")
        leading = asyncio.create_task(leader.lead(forever, lambda: settled))
        await eventually_async(lambda: leader.leading, "leads")
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        holder = json.loads(await client.get(LEASES, "sched", namespace))["spec"].get("holderIdentity")
        assert (holder or "") == ("" if settled else "leader")

    run(elect)


def test_work_that_ends_slowly_keeps_the_lease_until_it_has_ended(run, namespace):
    async def elect(client: HttpClient) -> None:
        holders: list[str] = []

        async def work() -> None:
            try:
                await forever()
            finally:
                troubled.renewals = 0
                await eventually_async(lambda: troubled.renewals >= 2, "renewals")
                holders.append(json.loads(await client.get(LEASES, "sched", namespace))["spec"]["holderIdentity"])

        troubled = Troubled(client)
        leader = elector(troubled, namespace, "leader")
        leading = asyncio.create_task(leader.lead(work))
        await eventually_async(lambda: leader.leading, "leads")
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        assert holders == ["leader"]

    run(elect)


def test_a_leader_whose_renewals_fail_gives_up_before_others_may_begin(run, namespace):
    async def elect(client: HttpClient) -> None:
        troubled = Troubled(client)
        leader = elector(troubled, namespace, "leader")
        leading = asyncio.create_task(leader.lead(forever))
        await eventually_async(lambda: leader.leading, "leads")
        troubled.planned = [("get", Unreachable("no answer"))] * 1000
        with pytest.raises(LeaderLost):
            await leading
        holder = json.loads(await client.get(LEASES, "sched", namespace))["spec"]["holderIdentity"]
        assert holder == "leader", "it runs out by itself: a write of ours may still be under way"

    run(elect)


def test_a_process_that_lost_the_lease_waits_as_long_as_any_other_and_no_longer(run, namespace):
    """What it wrote last is remembered: the time it could not reach the server counts."""

    class Clock(ManualClock):
        def now(self) -> float:
            return SystemClock().now()

    async def elect(client: HttpClient) -> None:
        clock = Clock()
        settings = LeaseSettings("sched", namespace, duration=15.0, renew_deadline=10.0, retry=0.01)
        before = Elector(client, settings, "first life", clock)
        assert await before._try() == "held"
        again, unrelated = before.successor(client, "second life"), Elector(client, settings, "unrelated", clock)
        for waited, outcome in ((0.0, "taken"), (14.9, "taken"), (0.2, "held")):
            clock.advance(waited)
            assert await again._try() == outcome
        assert await unrelated._try() == "taken"
        # A renewal whose answer got lost is news, and counts from when it was seen.
        body = json.loads(await client.get(LEASES, "sched", namespace))
        body["spec"]["renewTime"] = "2030-01-01T00:00:00.000000Z"
        await client.update(LEASES, "sched", body, namespace)
        third = again.successor(client, "third life")
        clock.advance(20.0)
        assert await third._try() == "taken"
        clock.advance(15.1)
        assert await third._try() == "held"

    run(elect)
