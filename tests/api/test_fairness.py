"""One client cannot starve others: turns, queues, seats, watches, connections. Counted, never timed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from phalanx.base.errors import TooManyRequests
from phalanx.local.api.fairness import Fairness, Flow, Shares, flow_name
from phalanx.local.api.limits import Limits
from support.local_cluster import LocalCluster
from support.raw_http import ALONE, raw, request, version_code


class Clients:
    """Requests that note the order in which they were let in and out."""

    def __init__(self, shares: Shares) -> None:
        self.fairness = Fairness(shares)
        self.begun: list[str] = []
        self.refused: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    def ask(self, agent: str, count: int = 1, turns: int = 0, urgent: bool = False) -> None:
        """`turns`: how long each is being answered."""

        async def one() -> None:
            flow = self.fairness.flow("admin", agent)
            try:
                await self.fairness.enter(flow, urgent=urgent)
            except TooManyRequests as problem:
                assert problem.retry_after
                self.refused.append(agent)
                return
            try:
                self.begun.append(agent)
                for _ in range(turns):
                    await asyncio.sleep(0)
            finally:
                self.fairness.leave(flow)

        self.tasks += [asyncio.ensure_future(one()) for _ in range(count)]

    async def done(self) -> None:
        await asyncio.gather(*self.tasks)
        await asyncio.sleep(0)
        assert self.fairness.running == self.fairness.waiting == 0
        assert not self.fairness._flows, "a client that went away is remembered"


def test_a_small_client_waits_for_one_turn_of_the_flood_not_for_all_of_it() -> None:
    async def scenario() -> None:
        clients = Clients(Shares(turn=4, turn_all=4))
        clients.ask("flood", 400)
        await asyncio.sleep(0)
        clients.ask("kubectl")
        await clients.done()
        assert clients.begun.index("kubectl") <= 12
        assert clients.begun.count("flood") == 400

    asyncio.run(scenario())


def test_many_names_share_what_all_clients_may_have_and_ours_stand_outside() -> None:
    async def scenario() -> None:
        clients = Clients(Shares(turn=4, turn_all=8))
        for name in range(50):
            clients.ask(f"flood-{name}", 20)
        await asyncio.sleep(0)
        clients.ask("phalanx-scheduler", 2)
        clients.ask("some-leader", urgent=True)
        clients.ask("kubectl")
        await clients.done()
        assert max(i for i, name in enumerate(clients.begun) if name.startswith(("phalanx", "some"))) <= 24
        assert clients.begun.index("kubectl") <= 50 * 4 + 24  # once around

    asyncio.run(scenario())


def test_a_client_that_sends_more_than_its_queue_holds_is_refused_and_others_are_not() -> None:
    async def scenario() -> None:
        clients = Clients(Shares(slots_per_client=2, queue=10, turn=100))
        clients.ask("flood", 100, turns=5)
        clients.ask("kubectl", 3)
        await clients.done()
        assert clients.refused == ["flood"] * 88
        assert clients.begun.count("flood") == 12 and clients.begun.count("kubectl") == 3

    asyncio.run(scenario())


def test_no_more_requests_of_one_client_are_answered_at_a_time_than_it_has_seats() -> None:
    async def scenario() -> None:
        clients = Clients(Shares(slots_per_client=3, turn=100))
        most = 0
        clients.ask("flood", 30, turns=4)
        while not all(task.done() for task in clients.tasks):
            most = max(most, clients.fairness.running)
            await asyncio.sleep(0)
        assert most == 3
        await clients.done()

    asyncio.run(scenario())


def test_a_request_that_is_cancelled_while_it_waits_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        clients = Clients(Shares(slots_per_client=1, turn=1))
        clients.ask("flood", 20, turns=3)
        await asyncio.sleep(0)
        for task in clients.tasks[5:15]:
            task.cancel()
        await asyncio.gather(*clients.tasks, return_exceptions=True)
        clients.tasks.clear()
        await clients.done()

    asyncio.run(scenario())


def test_watches_of_one_client_are_bounded() -> None:
    fairness = Fairness(Shares(watches=2))
    flow = Flow("x", False)
    fairness.watch(flow)
    fairness.watch(flow)
    with pytest.raises(TooManyRequests, match="2 watches"):
        fairness.watch(flow)
    fairness.unwatch(flow)
    fairness.watch(flow)
    assert flow_name("u", "kubectl/v1.37 (linux)") == flow_name("u", "kubectl/v1.36") != flow_name("u", "k9s/1")


@pytest.fixture(scope="module")
def tight(start_cluster: Callable[..., LocalCluster]) -> LocalCluster:
    return start_cluster(limits=Limits(connections=6, shares=Shares(watches=3)), **ALONE)


def test_idle_connections_make_room_for_new_ones(tight: LocalCluster) -> None:
    idle = [raw(tight) for _ in range(5)]
    for sock in idle:
        assert version_code(tight, sock) == 200
    for _ in range(12):
        assert tight.ask("GET", "/api/v1/namespaces/default").code == 200
    assert version_code(tight, idle[-1]) == 200, "the one that was idle longest goes first"
    for sock in idle:
        sock.close()


def test_too_many_watches_are_refused_with_429_and_seen_in_the_metrics(tight: LocalCluster) -> None:
    watches = [raw(tight) for _ in range(3)]
    for sock in watches:
        sock.sendall(request(tight, "GET /api/v1/namespaces?watch=true HTTP/1.1"))
        assert sock.recv(15).startswith(b"HTTP/1.1 200")
    reply = tight.ask("GET", "/api/v1/namespaces", watch="true")
    assert reply.code == 429 and reply.headers["retry-after"] and reply.json["reason"] == "TooManyRequests"
    assert tight.ask("GET", "/api/v1/namespaces").code == 200
    assert "apiserver_flowcontrol_rejected_requests_total 1.0" in tight.ask("GET", "/metrics").body.decode()
    for sock in watches:
        sock.close()
