"""ReplicationController (v1)."""
