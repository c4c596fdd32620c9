"""ReplicaSet (apps/v1)."""
