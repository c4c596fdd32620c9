"""The kubeconfig of a local cluster: everything a client needs, readable by its owner only."""

from __future__ import annotations

import base64
from pathlib import Path

import yaml

from phalanx.base.errors import ConfigProblem
from phalanx.local.api.files import write_private

NAME = "phalanx"


def kubeconfig_text(url: str, ca: bytes | None, token: str | None) -> str:
    cluster: dict[str, str] = {"server": url}
    if ca is not None:
        cluster["certificate-authority-data"] = base64.b64encode(ca).decode()
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": NAME, "cluster": cluster}],
            "users": [{"name": NAME, "user": {"token": token} if token else {}}],
            "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": NAME}}],
            "current-context": NAME,
        },
        sort_keys=False,
    )


def write_kubeconfig(path: Path, url: str, ca: bytes | None, token: str | None) -> None:
    try:
        write_private(path, kubeconfig_text(url, ca, token).encode())
    except OSError as problem:
        raise ConfigProblem("--kubeconfig", f"cannot write {path}: {problem.strerror or problem}") from None
