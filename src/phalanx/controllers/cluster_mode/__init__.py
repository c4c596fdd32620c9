"""Beside the controllers of a real cluster: groups for workloads that others own, and links for their pods."""
