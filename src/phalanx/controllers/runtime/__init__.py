"""Provide what every controller needs: caches, queues, events, status, ownership, and the writer of groups."""
