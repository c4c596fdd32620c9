"""Job, JobSet, LeaderWorkerSet and friends, and the grouping of workloads. Knows only the Client."""
