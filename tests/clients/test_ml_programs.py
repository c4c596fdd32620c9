"""Programs that ML users bring, each in a venv of its own: Kubeflow's Trainer SDK, dask-kubernetes, Airflow, SkyPilot.

`make test-clients` installs them (gigabytes for Airflow and SkyPilot, which takes minutes); `make test` skips them.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml

from support.client_venv import python_with, run_program
from support.local_cluster import LocalCluster
from support.programs import program

PROGRAMS = Path(__file__).parent / "programs"
DEFINITIONS = Path(__file__).parents[2] / "examples" / "crds" / "trainer.yaml"
RUNTIME = yaml.safe_load("""
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata:
  name: torch-two-nodes
  labels: {trainer.kubeflow.org/framework: torch}
spec:
  mlPolicy: {numNodes: 2, torch: {numProcPerNode: auto}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata:
            labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}
          spec:
            template:
              metadata:
                annotations: {simulation.phalanx.dev/run-seconds: "5"}
              spec:
                containers:
                - {name: node, image: example/torch}
""")

pytestmark = pytest.mark.timeout(2400)


def test_kubeflow_trainer_sdk(cluster: LocalCluster, place: str, tmp_path: Path) -> None:
    python = python_with("kubeflow")
    kubectl = [program("kubectl"), "--kubeconfig", str(cluster.kubeconfig)]
    subprocess.run([*kubectl, "apply", "-f", str(DEFINITIONS)], check=True, capture_output=True)
    subprocess.run([*kubectl, "apply", "-f", "-"], check=True, input=yaml.safe_dump(RUNTIME), text=True)
    run_program(python, tmp_path, str(PROGRAMS / "kubeflow_trainer.py"), str(cluster.kubeconfig), place)


def test_dask_operator(cluster: LocalCluster, place: str, tmp_path: Path) -> None:
    program_path, kubeconfig = str(PROGRAMS / "dask_operator.py"), str(cluster.kubeconfig)
    run_program(python_with("dask-kubernetes"), tmp_path, program_path, kubeconfig, place, KUBECONFIG=kubeconfig)


def test_airflow_pod_operator(cluster: LocalCluster, place: str, tmp_path: Path) -> None:
    python = python_with("apache-airflow-providers-cncf-kubernetes")
    program_path, kubeconfig = str(PROGRAMS / "airflow_pod.py"), str(cluster.kubeconfig)
    said = run_program(python, tmp_path, program_path, kubeconfig, place, AIRFLOW_HOME=str(tmp_path / "airflow"))
    assert "[base] step done" in said  # it reads logs with timestamps


def test_skypilot_check(cluster: LocalCluster, tmp_path: Path) -> None:
    """The check wants two programs on PATH that forward ports, which it only looks for."""
    python = python_with("skypilot[kubernetes]")
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("socat", "nc"):
        (tools / name).write_text("#!/bin/sh\nexit 0\n")
        (tools / name).chmod(0o755)
    settings = {"KUBECONFIG": str(cluster.kubeconfig), "SKYPILOT_DISABLE_USAGE_COLLECTION": "1"}
    run_program(python, tmp_path, str(PROGRAMS / "skypilot_check.py"), path=str(tools), **settings)
