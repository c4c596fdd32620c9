"""Handle failed nodes and evict pods from them."""
