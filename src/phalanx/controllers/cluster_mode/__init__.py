"""Create groups in cluster mode for workloads that upstream controllers own, and link their pods."""
