"""DisaggregatedSet (disaggregatedset.x-k8s.io/v1, part of LeaderWorkerSet)."""
