"""The real kubectl against the shared server."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from support.local_cluster import LocalCluster

KUBECTL = shutil.which("kubectl")


class Kubectl:
    def __init__(self, cluster: LocalCluster, namespace: str, home: Path) -> None:
        self.cluster, self.namespace, self.home = cluster, namespace, home
        self.environment = {"PATH": os.environ["PATH"], "HOME": str(home), "KUBECONFIG": str(cluster.kubeconfig)}

    def start(self, *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
        command = [str(KUBECTL), "--namespace", self.namespace, *arguments]
        return subprocess.run(  # type: ignore[call-overload,no-any-return]
            command, env=self.environment, text=True, capture_output=True, timeout=60, check=False, **options
        )

    def __call__(self, *arguments: str, input: str | None = None) -> str:
        """The output of a command that must succeed."""
        done = self.start(*arguments, input=input)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def fails(self, *arguments: str, input: str | None = None, code: int = 1) -> str:
        """What a command that must fail says."""
        done = self.start(*arguments, input=input)
        assert done.returncode == code, f"kubectl {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        command = [str(KUBECTL), "--namespace", self.namespace, *arguments]
        return subprocess.Popen(
            command, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def value(self, *arguments: str) -> str:
        """`kubectl get … -o jsonpath=…`: the last argument is the path."""
        *what, path = arguments
        return self("get", *what, "-o", f"jsonpath={{{path}}}")

    def apply(self, *objects: object, how: tuple[str, ...] = ()) -> str:
        return self("apply", *how, "-f", "-", input=yaml.safe_dump_all(objects))


@pytest.fixture(scope="session")
def kubectl_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for all: kubectl's discovery cache is part of what is tested."""
    return tmp_path_factory.mktemp("kubectl")


@pytest.fixture
def kubectl(server: LocalCluster, namespace: str, kubectl_home: Path) -> Kubectl:
    if KUBECTL is None:
        pytest.skip("no kubectl on PATH")
    return Kubectl(server, namespace, kubectl_home)


@pytest.fixture(scope="session")
def kubectl_for(kubectl_home: Path) -> Callable[[LocalCluster, str], Kubectl]:
    def make(cluster: LocalCluster, namespace: str = "default") -> Kubectl:
        if KUBECTL is None:
            pytest.skip("no kubectl on PATH")
        return Kubectl(cluster, namespace, kubectl_home)

    return make
