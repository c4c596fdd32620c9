"""CronJob (batch/v1)."""
