"""A network in memory: connections delay, lose or corrupt bytes, break, or go silent in one or both directions.

The product's HTTP client and HTTP server use it in place of TCP, unchanged. Faults are drawn from the weather in force,
by a generator that is passed in. Nothing here knows what the bytes mean.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from phalanx.kube.http1 import Connect

TICK = 1e-7  # seconds
KEEPALIVE = 30.0  # seconds after which a client notices a dead peer (kube/client.py sets it so)
HIGH_WATER = 256 << 10  # bytes in transit before a writer must wait
MOST_DELAY = 4.0  # seconds: less than a lease outlives its holder's deadline (docs/reliability.md says why it matters)


@dataclass(frozen=True, slots=True)
class Weather:
    """Probabilities of each fault, per piece of data sent; unnamed faults do not happen."""

    delay: float = 0.002  # seconds, on average
    stall: float = 0.0  # the piece is late by up to MOST_DELAY
    reset: float = 0.0  # the connection breaks
    cut: float = 0.0  # half of the piece arrives, then the connection breaks
    garble: float = 0.0  # one byte of an answer is none that could be right
    silence: float = 0.0  # from here on nothing arrives, in one direction or both, without an error
    refuse: float = 0.0  # a new connection is refused


CALM = Weather()


class Host:
    """One machine: its connections end with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.alive = True
        self.ends: dict[End, None] = {}


class Network:
    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        self.loop = loop
        self.rng = rng
        self.weather = CALM
        self.troubles = 0
        self._listeners: dict[str, tuple[Host, Callable[[], asyncio.BaseProtocol]]] = {}

    def listen(self, address: str, host: Host, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._listeners[address] = (host, factory)

    def connecting(self, host: Host) -> Connect:
        return lambda protocol, name, port: self.connect(host, f"{name}:{port}", protocol)

    async def connect(self, host: Host, address: str, protocol: asyncio.BaseProtocol) -> None:
        """Open a connection. Raises ConnectionRefusedError where nothing listens or the weather is bad."""
        await asyncio.sleep(self.latency())
        there = self._listeners.get(address)
        if there is None or not there[0].alive or not host.alive or self._chance(self.weather.refuse):
            raise ConnectionRefusedError(111, f"nobody answers at {address}")
        server, factory = there
        answering = factory()
        near, far = End(self, host, protocol), End(self, server, answering, serves=True)
        near.peer, far.peer = far, near
        answering.connection_made(far)
        protocol.connection_made(near)

    def crash(self, host: Host) -> None:
        """Crash the machine: its peers get a reset, or no notice at all."""
        host.alive = False
        for end in list(host.ends):
            end.vanish()
        host.ends.clear()

    def latency(self) -> float:
        if self._chance(self.weather.stall):
            return self.rng.uniform(0.1, MOST_DELAY)
        return min(self.rng.expovariate(1 / self.weather.delay), MOST_DELAY)

    def trouble(self) -> str:
        """Return the fault of the next piece of data; "" for none."""
        weather = self.weather
        for name in ("reset", "cut", "garble", "silence"):
            if self._chance(getattr(weather, name)):
                return name
        return ""

    def _chance(self, likely: float) -> bool:
        if not likely or self.rng.random() >= likely:
            return False
        self.troubles += 1
        return True


class End(asyncio.Transport):
    """One side of a connection."""

    def __init__(self, network: Network, host: Host, protocol: asyncio.BaseProtocol, *, serves: bool = False) -> None:
        super().__init__({"peername": ("10.0.0.1", 1), "sockname": ("10.0.0.2", 2)})
        self._network, self._host, self._serves = network, host, serves
        self._protocol = cast(asyncio.Protocol, protocol)
        self.peer: End
        self._arrival = 0.0  # of the last piece sent: pieces of one direction keep their order
        self._on_the_way = 0
        self._paused_writing = False
        self._reading = True
        self._held: deque[bytes] = deque()  # what arrived while the reader was paused, in its order
        self._silent = self._closing = self._lost = False
        host.ends[self] = None

    # -- what protocols call

    def write(self, data: bytes | bytearray | memoryview) -> None:
        piece = bytes(data)
        if self._closing or not piece:
            return
        trouble = self._network.trouble()
        if trouble == "reset":
            self._break()
            return
        if trouble == "silence":
            self._silent = True
            if self._network.rng.random() < 0.5:  # else only this direction: what the other side sends still arrives
                self.peer._silent = True
            self._notice_silence()
            self.peer._notice_silence()
        if trouble == "garble" and self._serves:
            # Never a byte that could be right: what garbles bytes unnoticed would have to break TLS.
            spot = self._network.rng.randrange(len(piece))
            piece = piece[:spot] + b"\0" + piece[spot + 1 :]
        if trouble == "cut":
            piece = piece[: len(piece) // 2]
        if not self._silent:
            self._on_the_way += len(piece)
            self._later(self._arrive, piece)
            if self._on_the_way > HIGH_WATER and not self._paused_writing:
                self._paused_writing = True
                self._protocol.pause_writing()
        if trouble == "cut":
            self._break()

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        self._network.loop.call_soon(self._end, None)
        if not self._silent:
            self._later(self.peer._end, None)

    def abort(self) -> None:
        if not self._lost:
            self._break()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._network.loop.call_soon(self._hand_over)

    def is_reading(self) -> bool:
        return self._reading

    def get_write_buffer_size(self) -> int:
        return self._on_the_way

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def can_write_eof(self) -> bool:
        return False

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._protocol

    # -- what the network does

    def vanish(self) -> None:
        """Drop the connection of a crashed machine: it sends nothing more, and the peer notices late or never."""
        self._closing = True
        self._network.loop.call_soon(self._end, ConnectionResetError(104, "the machine is gone"))
        if not self._silent and self._network.rng.random() < 0.8:
            self._later(self.peer._end, ConnectionResetError(104, "connection reset by peer"))
        else:
            self.peer._notice_silence()

    def _notice_silence(self) -> None:
        if not self._serves:
            self._network.loop.call_later(KEEPALIVE, self._end, TimeoutError(110, "connection timed out"))

    def _break(self) -> None:
        error = ConnectionResetError(104, "connection reset by peer")
        self._closing = True
        self._network.loop.call_soon(self._end, error)
        if not self._silent:
            self._later(self.peer._end, error)

    def _later(self, what: Callable[[Any], None], argument: Any) -> None:
        loop = self._network.loop
        # Timers of the same moment have no order: what was sent later arrives a little later.
        self._arrival = max(self._arrival + TICK, loop.time() + self._network.latency())
        loop.call_at(self._arrival, what, argument)

    def _arrive(self, piece: bytes) -> None:
        self._on_the_way -= len(piece)
        if self._paused_writing and self._on_the_way < HIGH_WATER // 4 and not self._closing:
            self._paused_writing = False
            self._protocol.resume_writing()
        self.peer._receive(piece)

    def _receive(self, piece: bytes) -> None:
        self._held.append(piece)
        self._hand_over()

    def _hand_over(self) -> None:
        while self._held and self._reading and not self._closing:
            self._protocol.data_received(self._held.popleft())

    def _end(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = self._closing = True
        self._host.ends.pop(self, None)
        self._protocol.connection_lost(error)
