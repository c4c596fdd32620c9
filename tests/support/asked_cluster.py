"""What tests of `why`, `whatif` and `plan` on a local cluster share: objects, and the commands in this process."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from phalanx.cli.main import main
from support.local_cluster import LocalCluster
from support.manifests import pod

Json = dict[str, Any]
RACK = "topology.phalanx.dev/rack"
GROUPS = "/apis/scheduling.k8s.io/v1beta1/namespaces/default/podgroups"
PODS = "/api/v1/namespaces/default/pods"


def members(of: str, count: int, **spec: Any) -> list[Json]:
    return [pod(f"{of}-{i}", gpus=8, group=of, **spec) for i in range(count)]


def put(cluster: LocalCluster, *objects: Json) -> None:
    for obj in objects:
        cluster.create(PODS if obj["kind"] == "Pod" else GROUPS, obj)


def condition(cluster: LocalCluster, path: str, name: str, status: str) -> str:
    """Wait, by watching, for the scheduling condition of an object whose members have arrived; return its message."""
    with cluster.watch(path, fieldSelector=f"metadata.name={name}") as watch:
        while True:
            event = watch.next()
            assert event is not None, f"{name} never got the condition"
            for found in (event[1].get("status") or {}).get("conditions") or ():
                if found.get("reason") == "WaitingForMembers":
                    continue
                if found["type"] in ("PodScheduled", "PodGroupInitiallyScheduled") and found["status"] == status:
                    return str(found.get("message", ""))


class Phalanx:
    """The command line in this process, as `main` runs it."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def __call__(self, *arguments: str, code: int) -> str:
        self._monkeypatch.setattr(sys, "argv", ["phalanx", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = self._capsys.readouterr()
        assert end.value.code == code, out + err
        return out + err
