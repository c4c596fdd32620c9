"""MPIJob (kubeflow.org/v2beta1)."""
