"""Real `phalanx` processes that tests may kill at any moment. They start quickly: a parent imports, they are forks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

PARENT = """
import json, os, sys
import phalanx.cli.apiserver, phalanx.cli.scheduler, phalanx.cli.up
import phalanx.serve.apiserver, phalanx.serve.parts, phalanx.serve.process, phalanx.serve.scheduler_process
import uvicorn.protocols.http.httptools_impl, uvloop
from phalanx.cli.main import main

print("parent", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        sys.argv = ["phalanx", *json.loads(line)]
        main()
    print(pid, flush=True)
    os.waitpid(pid, 0)
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Phalanx:
    """One command at a time; `start` it again after `kill`."""

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._pid = 0
        assert self._line() == "parent"

    def _line(self) -> str:
        assert self._parent.stdout is not None
        return self._parent.stdout.readline().strip()

    def start(self, *arguments: str) -> str:
        """Returns the line that says it is ready."""
        assert self._parent.stdin is not None
        self._parent.stdin.write(json.dumps(arguments) + "\n")
        self._parent.stdin.flush()
        lines = sorted([self._line(), self._line()])  # the pid and `ready`, in either order
        self._pid = int(lines[0])
        assert lines[1].startswith("ready"), lines
        return lines[1]

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self._pid:
            os.kill(self._pid, number)
            self._pid = 0

    def close(self) -> None:
        self.kill()
        assert self._parent.stdin is not None
        self._parent.stdin.close()
        self._parent.wait(30)
        assert self._parent.stdout is not None
        self._parent.stdout.close()


class Server(Phalanx):
    """`phalanx apiserver` on the same port and the same data, life after life."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.port = free_port()
        self.kubeconfig = directory / "kubeconfig"

    def live(self) -> None:
        self.start("apiserver", "--data", str(self.directory), "--listen", f"127.0.0.1:{self.port}")


PHALANX = [sys.executable, "-m", "phalanx"]


def started(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start a command of its own and wait for the line that says it is ready."""
    process = subprocess.Popen([*PHALANX, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    line = process.stdout.readline()
    assert line.startswith("ready"), (line, process.stderr.read())
    return process, line
