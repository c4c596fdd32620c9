"""RayCluster and RayJob (ray.io/v1)."""
