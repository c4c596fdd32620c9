"""Default scheduler plugins, one file each, with the exact semantics of kube-scheduler 1.37, computed over columns."""
