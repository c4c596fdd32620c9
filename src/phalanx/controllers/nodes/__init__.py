"""Nodes that fail, and the pods that have to leave them."""
