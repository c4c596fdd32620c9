"""The resource of MPIJobs, and the labels that their operator writes."""

from __future__ import annotations

from phalanx.base.client import Resource

MPI_JOBS = Resource("kubeflow.org", "v2beta1", "mpijobs", "MPIJob")
JOB_NAME = "training.kubeflow.org/job-name"
JOB_ROLE = "training.kubeflow.org/job-role"
