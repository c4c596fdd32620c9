"""Schedule pods with a deterministic state machine: events in, decisions out. No I/O, no clock, no randomness."""
