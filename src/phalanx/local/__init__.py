"""The embedded cluster: store, API server, simulated nodes."""
