"""Controllers of Job, JobSet, LeaderWorkerSet and other workloads, and their grouping. Uses only the Client."""
