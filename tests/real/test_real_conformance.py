"""The shared conformance cases with our scheduler, on servers with native groups and with custom resources.

Skipped where the shared folder is not next to the checkout.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.group_proxy import GroupProxy
from support.programs import program
from support.real_cluster import GATES, TOKEN, RealCluster

SUITE = Path(__file__).parents[3] / "shared" / "conformance"
CASES = sorted(SUITE.glob("cases/*.yaml"))
DEVICES = sorted(SUITE.glob("cases_dra/*.yaml"))
CONFIG = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
podInitialBackoffSeconds: 1
podMaxBackoffSeconds: 1
leaderElection: {resourceNamespace: phalanx-system}
"""
# Custom resources are validated by their schema: other messages, and no rules across fields or on updates.
NATIVE_ONLY = ("validation_api",)
# Kubernetes protects its own PodGroups from deletion, nothing protects custom resources.
UNPROTECTED = "lifecycle/terminating-group-still-schedules-its-members"

pytestmark = [
    pytest.mark.skipif(not SUITE.is_dir(), reason="there is no ../shared/conformance next to the checkout"),
    pytest.mark.timeout(1200),
]


def _start(directory: Path, *, groups: bool, gates: str = GATES) -> RealCluster:
    for name in ("etcd", "kube-apiserver", "kubectl"):
        program(name)
    cluster = RealCluster(directory, groups=groups, gates=gates)
    try:
        cluster.install()
        cluster.webhook_at(cluster.start("controllers"))
        (directory / "scheduler.yaml").write_text(CONFIG)
        scheduler = cluster.run(
            "scheduler",
            "scheduler",
            *("--config", str(directory / "scheduler.yaml")),
            *("--health", "127.0.0.1:0"),
            *("--kubeconfig", str(cluster.account("phalanx-scheduler"))),
        )
        scheduler.wait_for_log("caches are filled")
    except BaseException:
        cluster.close()
        raise
    return cluster


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    with contextlib.closing(_start(tmp_path_factory.mktemp("native"), groups=True)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def with_group_claims(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealCluster]:
    gates = f"{GATES},DRAWorkloadResourceClaims=true"
    with contextlib.closing(_start(tmp_path_factory.mktemp("claims"), groups=True, gates=gates)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def custom(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a proxy that lets the cases use the custom resources."""
    with (
        contextlib.closing(_start(tmp_path_factory.mktemp("custom"), groups=False)) as cluster,
        contextlib.closing(GroupProxy(cluster.url, TOKEN)) as proxy,
    ):
        yield f"http://127.0.0.1:{proxy.port}"


def failures(file: Path, results: Path, *options: str) -> list[str]:
    """Run the cases of a file; what failed twice, because the cases watch a clock and the machine may be busy."""
    failed: list[str] = []
    for scale in ("2", "4"):
        names = ["-k", ",".join(failed)] if failed else []
        command = [sys.executable, str(SUITE / "conform.py"), "--cases", str(file), "--json", str(results), *options]
        done = subprocess.run([*command, "--timeout-scale", scale, *names], capture_output=True, text=True)
        lines = [line for line in done.stdout.splitlines() if line.startswith("FAIL ")]
        failed = [line.split()[1] for line in lines]
        assert " passed, " in done.stdout, done.stdout + done.stderr
        if not failed:
            break
    return lines


def _ids(files: list[Path]) -> list[str]:
    return [file.stem for file in files]


@pytest.mark.parametrize("file", CASES, ids=_ids(CASES))
def test_native_groups(file: Path, native: RealCluster, tmp_path: Path) -> None:
    assert failures(file, tmp_path / "results.json", "--kubeconfig", str(native.kubeconfig)) == []


@pytest.mark.parametrize("file", DEVICES, ids=_ids(DEVICES))
def test_devices(file: Path, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    fixture = "with_group_claims" if file.stem == "dra_group_claims" else "native"
    cluster: RealCluster = request.getfixturevalue(fixture)
    assert failures(file, tmp_path / "results.json", "--kubeconfig", str(cluster.kubeconfig)) == []


CUSTOM_CASES = [file for file in CASES if file.stem not in NATIVE_ONLY]


@pytest.mark.parametrize("file", CUSTOM_CASES, ids=_ids(CUSTOM_CASES))
def test_custom_resources(file: Path, custom: str, tmp_path: Path) -> None:
    failed = failures(file, tmp_path / "results.json", "--server", custom, "--token", TOKEN)
    assert [line for line in failed if line.split()[1] != UNPROTECTED] == []
