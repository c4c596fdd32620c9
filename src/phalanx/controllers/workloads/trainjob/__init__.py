"""TrainJob (trainer.kubeflow.org/v1alpha1)."""
