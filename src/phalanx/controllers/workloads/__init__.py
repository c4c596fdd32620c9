"""One folder for each kind of workload, with one descriptor in it; see kind.py."""
