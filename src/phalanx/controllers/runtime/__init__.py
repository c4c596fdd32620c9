"""What every controller stands on: caches, queues, events, status, ownership, and the writer of groups."""
