"""PyTorchJob (kubeflow.org/v1)."""
