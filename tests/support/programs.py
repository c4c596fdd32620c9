"""Programs that other people built: where they are, and one of them running until the test is over.

They are looked for in the folder that KUBEBUILDER_ASSETS names (the convention of envtest) and on PATH. Nothing here
fetches or builds them: a test whose program is not at hand says so and is skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def program(name: str) -> str:
    """Where it is; the test is skipped if it is nowhere."""
    folder = os.environ.get("KUBEBUILDER_ASSETS", "")
    found = (shutil.which(name, path=folder) if folder else None) or shutil.which(name)
    if found is None:
        pytest.skip(
            f"{name} is neither in the folder that KUBEBUILDER_ASSETS names ({folder or 'not set'}) nor on PATH"
        )
    return found


def needs_kubernetes(minor: int, why: str) -> None:
    """Skip the test if kube-apiserver is older than 1.`minor`."""
    shown = subprocess.run([program("kube-apiserver"), "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"v1\.(\d+)", shown)
    if version is not None and int(version[1]) < minor:
        pytest.skip(f"{shown.strip()}: {why} Kubernetes 1.{minor}")


class Running:
    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process = process
        self._log = log

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def meanwhile(self, until: Callable[[Any], object]) -> Callable[[Any], bool]:
        """What is waited for, as long as the program runs."""

        def holds(found: Any) -> bool:
            assert self.alive, self.log[-3000:]
            return bool(until(found))

        return holds

    def complaints(self) -> list[str]:
        """Lines about resources it could not list or watch."""
        return [line for line in self.log.splitlines() if "Failed to watch" in line or "failed to list" in line]


@contextmanager
def running(log: Path, name: str, *arguments: str) -> Iterator[Running]:
    with log.open("wb") as out:
        process = subprocess.Popen([program(name), *arguments], stdout=out, stderr=out, stdin=subprocess.DEVNULL)
        try:
            yield Running(process, log)
        finally:
            process.kill()
            process.wait()
