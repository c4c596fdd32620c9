"""Real `phalanx` processes for trials under faults: an API server behind a door that slams, and parts that use it."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from phalanx.kube.client import HttpClient
from phalanx.kube.config import load


class Broken(Exception):
    """A promise that was not kept."""


class Part:
    """One `phalanx` process; what it logs goes to a file."""

    def __init__(self, directory: Path, name: str, *arguments: str) -> None:
        self.name, self.arguments = name, arguments
        self._log = directory / f"{name}.log"
        self.process: subprocess.Popen[str] | None = None
        self.line = ""

    async def start(self) -> None:
        command = [sys.executable, "-m", "phalanx", *self.arguments]
        with self._log.open("a") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)  # noqa: ASYNC220
        assert self.process.stdout is not None
        self.line = await asyncio.to_thread(self.process.stdout.readline)
        if not self.line.startswith("ready"):
            raise Broken(f"{self.name} did not start: {self.log_text()[-2000:]}")

    def log_text(self) -> str:
        return self._log.read_text()

    def check_alive(self) -> None:
        if self.process is not None and self.process.poll() is not None:
            raise Broken(f"{self.name} ended with code {self.process.returncode}:\n{self.log_text()[-3000:]}")

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    async def terminate(self) -> float:
        """Seconds from SIGTERM to its end, which must be orderly."""
        assert self.process is not None
        began = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        try:
            code = await asyncio.to_thread(self.process.wait, 35)
        except subprocess.TimeoutExpired:
            raise Broken(f"{self.name} ignores SIGTERM") from None
        if code != 0:
            raise Broken(f"{self.name} ended with code {code} after SIGTERM:\n{self.log_text()[-3000:]}")
        return time.monotonic() - began


class Door:
    """A port before the API server that slams, turns callers away, or lets the connections there are fall silent."""

    def __init__(self, target: int) -> None:
        self._target = target
        self.port = _free_port()
        self._server: asyncio.Server | None = None
        self._inside: set[asyncio.StreamWriter] = set()
        self._silent = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.turns_away = False

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._come_in, "127.0.0.1", self.port, backlog=512)

    def slam(self) -> None:
        """Stop listening, and break every connection."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._inside:
            writer.transport.abort()
        self._inside.clear()

    def turn_away(self) -> None:
        """Every connection breaks, and new ones do in the middle of their handshake."""
        self.turns_away = True
        for writer in self._inside:
            writer.transport.abort()

    def fall_silent(self) -> None:
        """Nothing comes any more over the connections there are; new ones work."""
        self._silent.set()
        self._silent = asyncio.Event()

    def _come_in(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._accept(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        silent = self._silent
        try:
            if self.turns_away:
                await reader.read(1)  # in the middle of the handshake
                writer.transport.abort()
                return
            their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._inside.update((writer, their_writer))
        pumps = (self._pump(reader, their_writer, silent), self._pump(their_reader, writer, silent))
        await asyncio.wait([asyncio.ensure_future(pump) for pump in pumps])
        self._inside.difference_update((writer, their_writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silent: asyncio.Event) -> None:
        try:
            while data := await reader.read(1 << 16):
                if not silent.is_set():
                    writer.write(data)
                    await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()


class Stage:
    """An API server behind a door, and parts that reach it through that door only."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory, self.rng = directory, random.Random(seed)
        port = _free_port()
        self.server = Part(
            directory, "apiserver", "apiserver", "--data", str(directory), "--listen", f"127.0.0.1:{port}"
        )
        self.kubeconfig, self.through = directory / "kubeconfig", directory / "through-door"
        self.door = Door(port)
        self._port = port
        self.parts: list[Part] = []

    async def start_part(self, name: str, *arguments: str) -> Part:
        part = Part(self.directory, name, *arguments, "--kubeconfig", str(self.through), "--log-level", "warning")
        self.parts.append(part)
        await part.start()
        return part

    async def begin(self) -> None:
        await self.server.start()
        await self.door.open()
        self.through.write_text(self.kubeconfig.read_text().replace(f":{self._port}", f":{self.door.port}"))

    def end(self) -> None:
        self.door.slam()
        for part in (*self.parts, self.server):
            part.kill()
            if part.process is not None and part.process.stdout is not None:
                part.process.stdout.close()


@asynccontextmanager
async def stage(seed: int) -> AsyncIterator[tuple[Stage, HttpClient]]:
    """With a client that goes past the door."""
    with tempfile.TemporaryDirectory(prefix="phalanx-faults-") as name:
        made = Stage(Path(name), seed)
        try:
            await made.begin()
            async with HttpClient(load(made.kubeconfig), user_agent="trial", timeout=30) as client:
                yield made, client
        finally:
            made.end()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])
