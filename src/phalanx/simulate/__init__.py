"""Play a trace of jobs against the engine's planner in virtual time and report what happened to it."""
