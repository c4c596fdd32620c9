"""The scheduling queue: units and where each one waits. Knows nothing of nodes, plugins or placement."""
