"""From a root in the queue to decisions: one attempt, the life of pods and groups, queue, commits, evictions."""
