"""The resources of TrainJobs and of the runtimes they refer to."""

from __future__ import annotations

from phalanx.base.client import Resource

GROUP, VERSION = "trainer.kubeflow.org", "v1alpha1"
TRAIN_JOBS = Resource(GROUP, VERSION, "trainjobs", "TrainJob")
RUNTIMES = (
    Resource(GROUP, VERSION, "trainingruntimes", "TrainingRuntime"),
    Resource(GROUP, VERSION, "clustertrainingruntimes", "ClusterTrainingRuntime", namespaced=False),
)
