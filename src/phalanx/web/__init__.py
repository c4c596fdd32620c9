"""The dashboard: one page with the state of the scheduler. Reads the engine and queries it; never writes."""
