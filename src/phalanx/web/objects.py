"""One object for the dashboard: its YAML without secret values, its owner, its node and kubectl lines for it.

A login may look at the dashboard without the right to read pods, so environment, commands and arguments are left out.
"""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from phalanx.base.client import Client
from phalanx.base.errors import ApiProblem, BadRequest
from phalanx.base.resources import COMPOSITE_POD_GROUPS, NODES, POD_GROUPS, PODS, WORKLOADS
from phalanx.base.well_known import LAST_APPLIED
from phalanx.model.kinds import Json

RESOURCES = {
    "pod": PODS,
    "node": NODES,
    "podgroup": POD_GROUPS,
    "compositepodgroup": COMPOSITE_POD_GROUPS,
    "workload": WORKLOADS,
}
_SECRET = ("env", "envFrom", "command", "args")  # of containers
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")


async def described(client: Client | None, kind: str, namespace: str, name: str) -> Json:
    """Return {"yaml", "owners", "node", "kubectl"}, or {"problem", "kubectl"} if the object cannot be read.

    client: None if a login does not imply the right to read objects
    """
    resource = RESOURCES.get(kind)
    if resource is None:
        raise BadRequest(f"kind must be one of {', '.join(RESOURCES)}")
    commands = kubectl_lines(kind, namespace, name.partition("/")[0])
    if client is None:
        return {
            "problem": "objects are not shown here: kubectl shows them to users who may read them",
            "kubectl": commands,
        }
    try:
        body = await client.get(resource, name.partition("/")[0], namespace if resource.namespaced else "")
    except ApiProblem as problem:
        return {"problem": f"{resource.kind} {name} cannot be read: {problem}", "kubectl": commands}
    found: Json = msgspec.json.decode(body)
    owners = [
        {"kind": each.get("kind", ""), "name": each.get("name", ""), "controller": bool(each.get("controller"))}
        for each in found["metadata"].get("ownerReferences") or ()
    ]
    return {
        "yaml": yaml.safe_dump(without_secrets(found), sort_keys=False, width=110, allow_unicode=True),
        "owners": owners,
        "node": (found.get("spec") or {}).get("nodeName", "") if kind == "pod" else "",
        "phase": (found.get("status") or {}).get("phase", "") if kind == "pod" else "",
        "kubectl": commands,
    }


def without_secrets(found: Json) -> Json:
    """Remove environment, commands and arguments of all containers, and what only servers read."""
    meta = found["metadata"]
    meta.pop("managedFields", None)
    if annotations := meta.get("annotations"):
        annotations.pop(LAST_APPLIED, None)
    _strip(found.get("spec"))
    return found


def _strip(value: Any) -> None:
    if isinstance(value, list):
        for inner in value:
            _strip(inner)
    elif isinstance(value, dict):
        for name, inner in value.items():
            if name in _CONTAINERS and isinstance(inner, list):
                for container in inner:
                    for secret in _SECRET if isinstance(container, dict) else ():
                        container.pop(secret, None)
            _strip(inner)


def kubectl_lines(kind: str, namespace: str, name: str) -> list[str]:
    """Return commands for a terminal that show more about the object."""
    where = f" -n {namespace}" if kind != "node" else ""
    lines = [f"kubectl get {kind} {name}{where} -o yaml", f"kubectl describe {kind} {name}{where}"]
    return lines if kind == "node" else [*lines, f"phalanx why {kind}/{name}{where}"]
