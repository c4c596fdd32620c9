"""Who is served next: no client, however many connections it has, makes another wait for more than its own turn.

In the spirit of API priority and fairness. A client is a user and a program (the name in its user agent). In every turn
of the loop each client may begin a few requests, and all clients together somewhat more, in rotation; the rest waits in
the client's own queue, and a full queue is answered with 429. Our own components and lease renewals stand
outside of what all clients share. Counts only: nothing here looks at a clock.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from functools import lru_cache

import msgspec

from phalanx.base.errors import TooManyRequests

OURS = "phalanx-"  # prefix of the user agents of our own programs


class Shares(msgspec.Struct, frozen=True):
    """What one client, and all of them, may have at a time."""

    slots_per_client: int = 128  # requests of one client being answered
    queue: int = 512  # requests of one client that wait
    turn: int = 16  # requests of one client begun in one iteration of the event loop; alone it may begin `turn_all`
    turn_all: int = 32  # of all clients together; ours and leases do not count
    watches: int = 2048  # of one client


class Flow(msgspec.Struct, eq=False):
    """One client."""

    name: str
    ours: bool
    running: int = 0
    begun: int = 0  # in this turn
    watches: int = 0
    queue: deque[asyncio.Future[None]] = msgspec.field(default_factory=deque)

    @property
    def idle(self) -> bool:
        return not (self.running or self.watches or self.queue)


@lru_cache(maxsize=64)  # few: a user agent may be long
def flow_name(user: str, agent: str) -> str:
    """Return the name of a client's flow: its user and program.

    `kubectl/v1.37 (linux)` and another version of kubectl are one client.
    """
    return f"{user} {agent.partition('/')[0].partition(' ')[0][:64]}"


class Fairness:
    def __init__(self, shares: Shares | None = None) -> None:
        self.shares = shares or Shares()
        self._flows: OrderedDict[str, Flow] = OrderedDict()  # the next one first
        self._begun = 0  # in this turn, by all that share
        self._turning = False
        self.rejected = 0

    @property
    def waiting(self) -> int:
        return sum(len(flow.queue) for flow in self._flows.values())

    @property
    def running(self) -> int:
        return sum(flow.running for flow in self._flows.values())

    def flow(self, user: str, agent: str) -> Flow:
        name = flow_name(user, agent)
        flow = self._flows.get(name)
        if flow is None:
            flow = self._flows[name] = Flow(name, agent.startswith(OURS))
        return flow

    async def enter(self, flow: Flow, *, urgent: bool = False) -> None:
        """Wait until the request may begin; `leave` must follow. Raises TooManyRequests."""
        if urgent:
            flow.running += 1
            return
        if not flow.queue and self._may_begin(flow):
            self._begin(flow)
            return
        if len(flow.queue) >= self.shares.queue:
            self.rejected += 1
            raise TooManyRequests(
                "Too many requests, please try again later: "
                f"{len(flow.queue)} requests of this client are waiting already",
                retry_after=1,
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        flow.queue.append(turn)
        self._arm()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(flow)  # it had just been admitted
            raise

    def leave(self, flow: Flow) -> None:
        flow.running -= 1
        if flow.queue:
            self._arm()
        elif flow.idle and not self._turning:
            self._flows.pop(flow.name, None)

    def watch(self, flow: Flow) -> None:
        """Count a watch that begins; `unwatch` must follow. Raises TooManyRequests."""
        if flow.watches >= self.shares.watches:
            self.rejected += 1
            raise TooManyRequests(
                f"this client has {flow.watches} watches already, as many as one may have", retry_after=5
            )
        flow.watches += 1

    def unwatch(self, flow: Flow) -> None:
        flow.watches -= 1
        if flow.idle and not self._turning:
            self._flows.pop(flow.name, None)

    def _may_begin(self, flow: Flow) -> bool:
        shares = self.shares
        turn = shares.turn if len(self._flows) > 1 else shares.turn_all
        if flow.running >= shares.slots_per_client or flow.begun >= turn:
            return False
        return flow.ours or self._begun < shares.turn_all

    def _begin(self, flow: Flow) -> None:
        flow.running += 1
        flow.begun += 1
        if not flow.ours:
            self._begun += 1
        self._arm()

    def _arm(self) -> None:
        if not self._turning:
            self._turning = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Start a new round: every client may begin again, least recently served first."""
        self._turning = False
        self._begun = 0
        for name, flow in tuple(self._flows.items()):
            flow.begun = 0
            if flow.idle:
                del self._flows[name]
        served = []
        for flow in tuple(self._flows.values()):
            while flow.queue and self._may_begin(flow):
                turn = flow.queue.popleft()
                if not turn.done():
                    self._begin(flow)
                    turn.set_result(None)
            if flow.begun:
                served.append(flow)
        for flow in served:
            self._flows.move_to_end(flow.name)
        if any(flow.queue and flow.running < self.shares.slots_per_client for flow in self._flows.values()):
            self._arm()
