"""Devices of dynamic resource allocation: what drivers publish, what claims request, and which pods get them."""
