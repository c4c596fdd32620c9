"""Deployment (apps/v1)."""
