"""Volumes of a local cluster: provisioning, binding, protection."""
