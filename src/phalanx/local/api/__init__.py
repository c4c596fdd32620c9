"""The Kubernetes REST grammar over the store."""
