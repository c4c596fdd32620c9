"""Prints a lock: what Phalanx needs to run (or to be worked on), each pinned to a version and the sha256 of its file.

    python tools/lock.py > requirements.lock
    python tools/lock.py dev > requirements-dev.lock
    python tools/lock.py --fits requirements-dev.lock     # code 0: made for this interpreter and platform

pip resolves, for the platform at hand and the first release of its Python (3.11.0 where 3.11.7 runs): what the lock
names can be installed with every later one, such as a distribution's own. Another platform wants a lock made there.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from pip._vendor.packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
OURS = "phalanx-scheduler"


BUILDS = ("hatchling", "editables")  # what an editable installation of ours is built with


def here() -> str:
    version = f"{platform.python_implementation()} {sys.version_info[0]}.{sys.version_info[1]}"
    return f"{version} on {sys.platform} {platform.machine()}"


def oldest() -> str:
    return f"{sys.version_info[0]}.{sys.version_info[1]}.0"


def fits(path: str) -> bool:
    return Path(path).read_text().splitlines()[0].endswith(f" for {here()}.")


def resolved(extra: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--disable-pip-version-check", "--report", "-"]
    # Of what the oldest can run: a package that asks for 3.11.5 would end `make up` on a machine with 3.11.2.
    command += ["--python-version", oldest(), "--only-binary", ":all:", "--target", "nowhere"]
    command += [f"{ROOT}[{extra}]", *BUILDS] if extra else [str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: pip could not resolve the dependencies:\n{done.stderr}")
    found: list[dict[str, Any]] = json.loads(done.stdout)["install"]
    return found


def requested_extras(found: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Return, by lower-case package name, the extras with which other packages of the lock require it.

    The pin must name them: pip (seen with 23.2) otherwise takes the newest release for `coverage[toml]>=7` and rejects
    it as not pinned, from the day on which a newer release than the pinned one exists.
    """
    extras: dict[str, set[str]] = {}
    for each in found:
        for text in each["metadata"].get("requires_dist", []):
            required = Requirement(text)
            if required.extras and (required.marker is None or required.marker.evaluate({"extra": ""})):
                extras.setdefault(required.name.lower(), set()).update(required.extras)
    return extras


def lock(extra: str = "") -> str:
    name = f"requirements-{extra}.lock" if extra else "requirements.lock"
    lines = [f"# Made by `make lock` for {here()}.", f"# pip install --require-hashes -r {name}"]
    found = resolved(extra)
    extras = requested_extras(found)
    for each in sorted(found, key=lambda each: each["metadata"]["name"].lower()):
        name, version = each["metadata"]["name"].lower(), each["metadata"]["version"]
        if name == OURS:
            continue
        wanted = f"[{','.join(sorted(extras[name]))}]" if name in extras else ""
        digest = each["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}{wanted}=={version} \\\n    --hash=sha256:{digest}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fits"]:
        sys.exit(0 if fits(sys.argv[2]) else 1)
    sys.stdout.write(lock(*sys.argv[1:2]))
