"""Durable revisioned storage: one writer, many readers, acknowledged means durable."""
