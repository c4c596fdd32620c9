"""Simulated kubelets."""
