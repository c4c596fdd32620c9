"""Prints a CycloneDX 1.5 SBOM of what is installed for Phalanx: it and everything it needs, from installed metadata.

    python tools/sbom.py [EXTRA ...] > sbom.json

No network, no clock and no random number: the same environment gives the same bytes.
"""

from __future__ import annotations

import json
import re
import sys
from collections import deque
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from typing import Any

from packaging.requirements import Requirement

ROOT = "phalanx-scheduler"


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def needs(found: Distribution, extras: frozenset[str]) -> list[Requirement]:
    wanted = []
    for text in found.requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""})):
            wanted.append(requirement)
    return wanted


def collect(root: str, extras: frozenset[str]) -> tuple[dict[str, Distribution], dict[str, set[str]]]:
    """Distributions by canonical name, and which of them each one needs."""
    found: dict[str, Distribution] = {}
    edges: dict[str, set[str]] = {}
    todo = deque([(root, extras)])
    seen: set[tuple[str, frozenset[str]]] = set()
    while todo:
        name, wanted = todo.popleft()
        key = canonical(name)
        if (key, wanted) in seen:
            continue
        seen.add((key, wanted))
        try:
            found[key] = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"error: {name} is needed and not installed; run `make venv`") from None
        for requirement in needs(found[key], wanted | {""} if wanted else frozenset()):
            edges.setdefault(key, set()).add(canonical(requirement.name))
            todo.append((requirement.name, frozenset(requirement.extras)))
    return found, edges


def component(key: str, found: Distribution, kind: str) -> dict[str, Any]:
    reference = f"pkg:pypi/{key}@{found.version}"
    described: dict[str, Any] = {
        "type": kind,
        "bom-ref": reference,
        "name": key,
        "version": found.version,
        "purl": reference,
    }
    licence = found.metadata.get("License-Expression") or found.metadata.get("License") or ""
    if licence and len(licence) < 80 and "\n" not in licence:
        form = {"expression": licence} if found.metadata.get("License-Expression") else {"license": {"name": licence}}
        described["licenses"] = [form]
    return described


def sbom(extras: frozenset[str] = frozenset()) -> dict[str, Any]:
    found, edges = collect(ROOT, extras)
    parts = {
        key: component(key, each, "application" if key == ROOT else "library") for key, each in sorted(found.items())
    }
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": parts[ROOT]},
        "components": [part for key, part in parts.items() if key != ROOT],
        "dependencies": [
            {"ref": part["bom-ref"], "dependsOn": sorted(parts[other]["bom-ref"] for other in edges.get(key, ()))}
            for key, part in parts.items()
        ],
    }


if __name__ == "__main__":
    json.dump(sbom(frozenset(sys.argv[1:])), sys.stdout, indent=1)
    sys.stdout.write("\n")
