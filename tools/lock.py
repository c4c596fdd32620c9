"""Writes requirements.lock: what Phalanx needs to run, each pinned to a version and to the sha256 of its file.

    python tools/lock.py > requirements.lock

pip resolves, for the interpreter and platform at hand: an image for another platform wants a lock made there.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
OURS = "phalanx-scheduler"


def resolved() -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--disable-pip-version-check", "--report", "-", str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: pip could not resolve the dependencies:\n{done.stderr}")
    found: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return found


def lock() -> str:
    where = f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]}"
    lines = [
        f"# Made by `make lock` for {where} on {sys.platform} {platform.machine()}.",
        "# pip install --require-hashes -r requirements.lock",
    ]
    for each in sorted(resolved(), key=lambda each: each["metadata"]["name"].lower()):
        name, version = each["metadata"]["name"], each["metadata"]["version"]
        if name == OURS:
            continue
        digest = each["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name.lower()}=={version} \\\n    --hash=sha256:{digest}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(lock())
