"""Airflow's KubernetesPodOperator: a pod that succeeds, and one that fails. Arguments: KUBECONFIG NAMESPACE."""

import sys
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

from airflow.exceptions import AirflowException
from airflow.providers.cncf.kubernetes.operators.pod import KubernetesPodOperator
from kubernetes import client, config


def context(task: str) -> dict[str, Any]:
    """The fields of a task's context that the operator reads outside Airflow's own processes."""
    now = datetime.now(UTC)
    run = SimpleNamespace(run_id="manual", logical_date=now, run_after=now)
    ti = SimpleNamespace(
        dag_id="sample", task_id=task, run_id="manual", map_index=-1, try_number=1, is_mapped=False, dag_run=run,
        xcom_push=lambda **_: None, xcom_pull=lambda **_: None,
    )  # fmt: skip
    dag = SimpleNamespace(dag_id="sample", parent_dag=None)
    return {"dag": dag, "ti": ti, "task_instance": ti, "run_id": "manual", "dag_run": run, "logical_date": now}


def operator(task: str, kubeconfig: str, namespace: str, **annotations: str) -> KubernetesPodOperator:
    return KubernetesPodOperator(
        task_id=task,
        namespace=namespace,
        name=task,
        image="example/step",
        cmds=["true"],
        in_cluster=False,
        config_file=kubeconfig,
        annotations={f"simulation.phalanx.dev/{name.replace('_', '-')}": value for name, value in annotations.items()},
        container_resources=client.V1ResourceRequirements(requests={"cpu": "1"}),
    )


def main(kubeconfig: str, namespace: str) -> None:
    operator("succeeds", kubeconfig, namespace, run_seconds="1", log="step done").execute(context("succeeds"))
    try:
        operator("fails", kubeconfig, namespace, run_seconds="1", exit_code="3").execute(context("fails"))
    except AirflowException as failed:
        assert "fails" in str(failed), failed
    else:
        raise AssertionError("a pod that ends with exit code 3 has failed")
    config.load_kube_config(kubeconfig)
    left = client.CoreV1Api().list_namespaced_pod(namespace, label_selector="dag_id=sample")
    assert left.items == [], [pod.metadata.name for pod in left.items]


main(*sys.argv[1:])
