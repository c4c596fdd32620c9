"""The public harness under the name that tests import."""

from phalanx.testing.local_cluster import Json, LocalCluster, Reply, Watch, local_cluster

__all__ = ["Json", "LocalCluster", "Reply", "Watch", "local_cluster"]
