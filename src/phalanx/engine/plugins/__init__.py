"""The default plugins, one file each. Exact semantics of kube-scheduler 1.37, computed over columns."""
