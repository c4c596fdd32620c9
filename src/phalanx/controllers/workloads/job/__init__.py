"""Job (batch/v1)."""
