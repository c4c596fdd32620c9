"""LeaderWorkerSet (leaderworkerset.x-k8s.io/v1)."""
