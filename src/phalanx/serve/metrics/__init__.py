"""Metrics of the scheduler, with kube-scheduler's names for equal meanings."""
