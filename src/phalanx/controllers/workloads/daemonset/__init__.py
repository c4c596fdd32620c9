"""DaemonSet (apps/v1): never grouped."""
