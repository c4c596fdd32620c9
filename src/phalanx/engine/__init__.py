"""Scheduling: events in, decisions out. No I/O, no asyncio, no wall clock, no randomness of its own."""
