"""The way people use the examples: the real kubectl applies all of them, waits, and deletes them again."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
KUBECTL = shutil.which("kubectl")


@pytest.mark.kubectl
@pytest.mark.slow
@pytest.mark.skipif(KUBECTL is None, reason="no kubectl on PATH")
def test_kubectl_applies_waits_rolls_and_deletes(start_cluster: Callable[..., Any], tmp_path: Path) -> None:
    cluster = start_cluster(nodes=16, topology="blocks=2,racks=4")

    def kubectl(*arguments: str) -> str:
        done = subprocess.run(
            [str(KUBECTL), "--kubeconfig", str(cluster.kubeconfig), *arguments],
            text=True,
            capture_output=True,
            timeout=90,
            check=False,
            env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    kubectl("apply", "-f", str(EXAMPLES / "crds"))
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=90s")
    applied = kubectl("apply", "-f", str(EXAMPLES))
    assert len(applied.splitlines()) >= 25
    kubectl("wait", "--for=condition=Completed", "jobset", "--all", "--timeout=120s")
    kubectl("wait", "--for=condition=Complete", "job/job-gang", "job/job-indexed", "--timeout=120s")
    kubectl("wait", "--for=condition=Available", "lws", "--all", "--timeout=120s")
    kubectl("rollout", "status", "statefulset/statefulset-gang", "--timeout=120s")
    kubectl("rollout", "status", "deployment/deployment-basic", "--timeout=120s")
    # Changing, pausing, undoing and scaling, as people do.
    kubectl("set", "image", "deployment/deployment-basic", "web=example/web:2")
    kubectl("rollout", "status", "deployment/deployment-basic", "--timeout=120s")
    assert "2" in kubectl("rollout", "history", "deployment/deployment-basic")
    kubectl("rollout", "undo", "deployment/deployment-basic")
    kubectl("rollout", "status", "deployment/deployment-basic", "--timeout=120s")
    path = "jsonpath={.spec.template.spec.containers[0].image}"
    assert kubectl("get", "deployment", "deployment-basic", "-o", path) == "example/web:1"
    kubectl("set", "image", "statefulset/statefulset-gang", "shard=example/search:2")
    kubectl("rollout", "status", "statefulset/statefulset-gang", "--timeout=120s")
    kubectl("rollout", "undo", "statefulset/statefulset-gang")
    kubectl("rollout", "status", "statefulset/statefulset-gang", "--timeout=120s")
    kubectl("scale", "lws/lws-created", "--replicas=1")
    kubectl("wait", "--for=jsonpath={.status.replicas}=1", "lws/lws-created", "--timeout=120s")
    kubectl("delete", "-f", str(EXAMPLES), "--timeout=120s")
    everything = "pods,jobs,replicasets,statefulsets,podgroups,compositepodgroups,workloads,controllerrevisions"
    kubectl("wait", "--for=delete", "pods,podgroups,workloads", "--all", "--timeout=120s")
    assert kubectl("get", everything, "-o", "name") == ""
