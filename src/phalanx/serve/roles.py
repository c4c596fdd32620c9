"""The rights that the roles of deploy/ give to the scheduler and the controllers, one by one."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from phalanx.serve.start_checks import RequiredRight

PARTS = ("scheduler", "controllers")
_PACKAGED = "roles.yaml"  # in a wheel; a checkout has the file itself
_CHECKOUT = Path(__file__).parents[3] / "deploy" / "base" / "20-rbac.yaml"


def rights_of(part: str, namespace: str) -> list[RequiredRight]:
    """Return every right of a part; those of its Role are in `namespace`."""
    found: dict[RequiredRight, None] = {}
    for role in yaml.safe_load_all(_text()):
        if role and role["kind"] in ("ClusterRole", "Role") and role["metadata"]["name"] == f"phalanx-{part}":
            home = namespace if role["kind"] == "Role" else ""
            found |= dict.fromkeys(right for rule in role["rules"] for right in _rights(rule, home))
    return list(found)


def _rights(rule: dict[str, Any], namespace: str) -> Iterator[RequiredRight]:
    for group in rule["apiGroups"]:
        for resource in rule["resources"]:
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames") or ("",):
                    yield RequiredRight(verb, group, resource, namespace, name)


def _text() -> str:
    packaged = files("phalanx.serve") / _PACKAGED
    return packaged.read_text() if packaged.is_file() else _CHECKOUT.read_text()
