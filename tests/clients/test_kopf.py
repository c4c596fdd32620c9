"""kopf: an operator with handlers for a kind of its own, which makes ConfigMaps and writes status."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.local_cluster import LocalCluster
from support.waiting import eventually

pytest.importorskip("kopf")

OPERATOR = """
    import kopf
    import kubernetes

    kubernetes.config.load_kube_config()

    @kopf.on.create("lamps.example.dev")
    @kopf.on.update("lamps.example.dev", field="spec")
    def shine(spec, name, namespace, patch, **_):
        core = kubernetes.client.CoreV1Api()
        body = {"metadata": {"name": f"{name}-{spec['colour']}"}}
        kopf.adopt(body)
        core.create_namespaced_config_map(namespace, body)
        patch.status["colour"] = spec["colour"]

    @kopf.on.delete("lamps.example.dev")
    def darken(**_):
        pass
"""
SCHEMA = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
DEFINITION = {
    "metadata": {"name": "lamps.example.dev"},
    "spec": {
        "group": "example.dev",
        "scope": "Namespaced",
        "names": {"plural": "lamps", "kind": "Lamp", "singular": "lamp"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": SCHEMA},
                "subresources": {"status": {}},
            }
        ],
    },
}


@contextmanager
def ending(operator: subprocess.Popen[bytes], log: Path) -> Iterator[None]:
    """Ends the operator; what it said is shown when something went wrong."""
    try:
        yield
    except AssertionError as problem:
        raise AssertionError(f"{problem}; the operator said:\n{log.read_text()[-3000:]}") from problem
    finally:
        operator.terminate()
        operator.wait(20)


def test_an_operator(cluster: LocalCluster, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kubernetes")
    cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    script = tmp_path / "operator.py"
    script.write_text(textwrap.dedent(OPERATOR))
    lamps, maps = f"/apis/example.dev/v1/namespaces/{place}/lamps", f"/api/v1/namespaces/{place}/configmaps"
    command = [sys.executable, "-m", "kopf", "run", "-n", place, "--standalone", str(script)]
    log = tmp_path / "log"
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=out) as operator, ending(operator, log):
        cluster.create(lamps, {"metadata": {"name": "a"}, "spec": {"colour": "red"}})
        eventually(lambda: (cluster.get(f"{lamps}/a").get("status") or {}).get("colour") == "red", "red")
        change = {"spec": {"colour": "blue"}}
        cluster.ask("PATCH", f"{lamps}/a", change, content_type="application/merge-patch+json")
        eventually(lambda: (cluster.get(f"{lamps}/a").get("status") or {}).get("colour") == "blue", "blue")
        names = {item["metadata"]["name"] for item in cluster.get(maps)["items"]}
        assert {"a-red", "a-blue"} <= names
        cluster.ask("DELETE", f"{lamps}/a")
        eventually(lambda: cluster.ask("GET", f"{lamps}/a").code == 404, "the lamp is gone")
        eventually(
            lambda: not any(item["metadata"]["name"].startswith("a-") for item in cluster.get(maps)["items"]),
            "its maps are gone",
        )
    cluster.ask("DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/lamps.example.dev")
