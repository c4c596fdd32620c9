"""Queries about the scheduler's state, over HTTP: `why`, `whatif`, `plan`, `demand` and the views of the engine."""
