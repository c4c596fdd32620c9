"""Scheduling: a deterministic state machine, events in and decisions out. No I/O, no clock, no randomness."""
