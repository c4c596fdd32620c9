"""Everything that several tests share: clusters, builders of objects, reference implementations, the simulator."""
