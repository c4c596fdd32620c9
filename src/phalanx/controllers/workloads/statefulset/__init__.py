"""StatefulSet (apps/v1)."""
