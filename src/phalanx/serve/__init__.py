"""Composition roots: wires concrete parts into processes."""
