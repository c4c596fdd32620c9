"""Random life cycles of workloads on virtual time: create, scale, change, crash, delete; invariants after each step."""
