"""Kubeflow's Trainer SDK: runtimes, train, wait, steps, list, delete. Arguments: KUBECONFIG NAMESPACE."""

import sys

from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import CustomTrainer, TrainerClient
from kubeflow.trainer.options import Labels


def train() -> None:
    print("not run: the pods are simulated")


def main(kubeconfig: str, namespace: str) -> None:
    client = TrainerClient(KubernetesBackendConfig(config_file=kubeconfig, namespace=namespace))
    (runtime,) = [found for found in client.list_runtimes() if found.name == "torch-two-nodes"]
    assert client.get_runtime("torch-two-nodes").trainer.num_nodes == 2
    trainer = CustomTrainer(func=train, num_nodes=3, resources_per_node={"cpu": 2, "gpu": 1})
    name = client.train(runtime=runtime, trainer=trainer, options=[Labels({"team": "a"})])
    running = client.wait_for_job_status(name, status={"Running"}, timeout=120, polling_interval=1)
    assert running.num_nodes == 3, running
    assert {step.name for step in running.steps} == {"node-0", "node-1", "node-2"}, running.steps
    assert {step.status for step in running.steps} == {"Running"}, running.steps
    assert [step.device_count for step in running.steps] == ["1", "1", "1"], running.steps
    done = client.wait_for_job_status(name, timeout=120, polling_interval=1)
    assert done.status == "Complete", done
    assert [job.name for job in client.list_jobs(runtime)] == [name]
    client.delete_job(name)
    assert client.list_jobs() == []


main(*sys.argv[1:])
