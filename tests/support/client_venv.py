"""A venv for a program of other people whose requirements do not go together with ours."""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "build" / "clients"
INSTALL_SECONDS = 1800
INSTALL = "PHALANX_INSTALL_CLIENTS"  # set by `make test-clients`; `make test` downloads nothing


def python_with(requirement: str) -> Path:
    """Return the interpreter of a venv that has the requirement. Skip the test if it is not or cannot be installed."""
    folder = ROOT / requirement.partition("[")[0]
    python, stamp = folder / "bin" / "python", folder / f"installed-{sys.version_info.major}.{sys.version_info.minor}"
    if not stamp.exists():
        if not os.environ.get(INSTALL):
            pytest.skip(f"{requirement} is not installed; `make test-clients` installs it")
        faulthandler.cancel_dump_traceback_later()  # an installation takes minutes
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            pytest.skip(f"{requirement} was not installed within {INSTALL_SECONDS} s")
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            pytest.skip(f"{requirement} cannot be installed: {(errors or [done.stderr.strip()])[-1][:300]}")
        stamp.touch()
    return python


def run_program(python: Path, home: Path, *arguments: str, path: str = "", **environment: str) -> str:
    """Run a program with that interpreter in a home folder of its own, and return what it wrote."""
    env = {**os.environ, "HOME": str(home), **environment}
    env["PATH"] = os.pathsep.join(part for part in (path, str(python.parent), env["PATH"]) if part)
    command = [str(python), *arguments]
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=home, env=env, text=True, timeout=600, **both)
    assert done.returncode == 0, done.stdout[-5000:]
    return done.stdout
