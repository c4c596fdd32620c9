"""The kubeconfig of a local cluster: everything a client needs, readable by its owner only."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from phalanx.base.errors import ConfigProblem
from phalanx.local.api.files import write_private

NAME = "phalanx"


def kubeconfig_text(url: str, ca: bytes | None, token: str | None, name: str = NAME) -> str:
    cluster: dict[str, str] = {"server": url}
    if ca is not None:
        cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster}],
            "users": [{"name": name, "user": {"token": token} if token else {}}],
            "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
            "current-context": name,
        },
        sort_keys=False,
    )


def context_name(cluster: str) -> str:
    """Return the context name of a named cluster, which must differ from others in the same file."""
    return f"{NAME}-{cluster}" if cluster else NAME


def write_kubeconfig(path: Path, url: str, ca: bytes | None, token: str | None, name: str = NAME) -> None:
    try:
        write_private(path, kubeconfig_text(url, ca, token, name).encode())
    except OSError as problem:
        raise ConfigProblem("--kubeconfig", f"cannot write {path}: {problem.strerror or problem}") from None


def merge_kubeconfig(path: Path, into: Path) -> str:
    """Merge the cluster of one kubeconfig into another; return the context to use. Raises ConfigProblem."""
    new = yaml.safe_load(path.read_text())
    try:
        old = yaml.safe_load(into.read_text()) if into.exists() else None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as problem:
        raise ConfigProblem(str(into), f"cannot be read, so nothing was changed: {problem}") from None
    old = old or {"apiVersion": "v1", "kind": "Config"}
    if not isinstance(old, dict) or old.get("kind") != "Config":
        raise ConfigProblem(str(into), "is not a kubeconfig, so nothing was changed")
    context = str(new["current-context"])
    for part in ("clusters", "users", "contexts"):
        others = [item for item in old.get(part) or () if item.get("name") != context]
        old[part] = [*others, *new[part]]
    old["current-context"] = context
    try:
        write_private(into, yaml.safe_dump(old, sort_keys=False).encode())
    except OSError as problem:
        raise ConfigProblem(str(into), f"cannot be written: {problem.strerror or problem}") from None
    return context
