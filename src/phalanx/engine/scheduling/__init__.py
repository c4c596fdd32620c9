"""The scheduler: `queue`, `lifecycle`, `attempt` and `commit`, put together by `scheduler`."""
